"""The tokenizer's routes over the real hypercorn in memory, with the fake's words and with real vocabularies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from slim.engines.fake import FakeEngine
from support import tiny_bert
from support.in_process import World, world
from support.smollm2 import smollm2_path

MESSAGES = [{"role": "user", "content": "Say hi"}]
CHAT = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@asynccontextmanager
async def smollm2() -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    path = smollm2_path()
    from slim.engines.llama_cpp import LlamaEngine, LlamaOptions

    engine = LlamaEngine(LlamaOptions(model_path=path, slots=1, context=256, threads=1, prefill_chunk=32))
    try:
        async with world([engine]) as w, w.client() as client:
            yield w, client
    finally:
        engine.close()


async def test_the_real_vocabulary_in_both_forms(autojump_clock: MockClock) -> None:
    async with smollm2() as (_, client):
        tokens = (await post(client, "/tokenize", content="The capital of France is"))["tokens"]
        assert len(tokens) == 5
        counted = await post(client, "/tokenize", prompt="The capital of France is", return_token_strs=True)
        assert counted == {
            "count": 5,
            "max_model_len": 256,
            "tokens": tokens,
            "token_strs": ["The", " capital", " of", " France", " is"],
        }
        with_pieces = (await post(client, "/tokenize", content="😀", with_pieces=True))["tokens"]
        data = [item["piece"] for item in with_pieces]
        assert bytes(byte for piece in data for byte in (piece.encode() if isinstance(piece, str) else piece)) == (
            "😀".encode()
        )
        assert any(isinstance(piece, list) for piece in data)


async def test_text_comes_back_to_the_byte_long_white_space_too(autojump_clock: MockClock) -> None:
    async with smollm2() as (_, client):
        for text in (
            *("a" + " " * n + "b" for n in (1, 15, 16, 17, 31, 32, 33, 64, 128)),
            "naïve 😀\t漢字\r\n\x00",
            "",
        ):
            tokens = (await post(client, "/tokenize", content=text))["tokens"]
            assert await post(client, "/detokenize", tokens=tokens) == {"content": text, "prompt": text}


async def test_control_tokens_are_parsed_as_asked_and_have_names(autojump_clock: MockClock) -> None:
    async with smollm2() as (_, client):
        for form in ({"prompt": "<|im_end|>"}, {"content": "<|im_end|>"}):
            (token,) = (await post(client, "/tokenize", **form))["tokens"]
            assert (await post(client, "/detokenize", tokens=[token]))["content"] == "<|im_end|>"
        assert len((await post(client, "/tokenize", content="<|im_end|>", parse_special=False))["tokens"]) > 1
        shown = await post(client, "/tokenize", prompt="a<|im_end|>", return_token_strs=True)
        assert shown["token_strs"] == ["a", "<|im_end|>"]


async def test_a_conversations_prompt_and_tokens_are_those_of_a_chat_request(autojump_clock: MockClock) -> None:
    async with smollm2() as (_, client):
        prompt = (await post(client, "/apply-template", messages=MESSAGES))["prompt"]
        assert prompt.endswith(CHAT)
        tokenized = await post(client, "/tokenize", messages=MESSAGES)
        assert tokenized["tokens"] == (await post(client, "/tokenize", prompt=prompt))["tokens"]
        chat = await post(client, "/v1/chat/completions", messages=MESSAGES, max_tokens=1)
        assert chat["usage"]["prompt_tokens"] == tokenized["count"]


async def test_the_tokenizers_facts_serve_lm_evals_remote_tokenizer(autojump_clock: MockClock) -> None:
    async with smollm2() as (_, client):
        facts = (await client.get("/tokenizer_info")).json()
        assert (facts["bos_token"], facts["eos_token"], facts["pad_token"]) == ("<|im_start|>", "<|im_end|>", None)
        assert "<|im_start|>" in facts["chat_template"]
        assert facts["model_max_length"] == 256
        # How it finds the id of a control token.
        form = {"prompt": facts["eos_token"], "add_special_tokens": False}
        assert len((await post(client, "/tokenize", **form))["tokens"]) == 1
        assert (await post(client, "/tokenize", prompt="", add_special_tokens=False))["tokens"] == []


async def test_the_tokens_round_a_text_come_only_where_they_are_asked_for(
    autojump_clock: MockClock, tmp_path: Any
) -> None:
    path = tiny_bert.write_model(tmp_path / "bert.gguf", tiny_bert.make_weights(), 1)
    from slim.engines.llama_cpp import LlamaOptions
    from slim.engines.llama_cpp.embedding import LlamaEmbeddingEngine

    engine = LlamaEmbeddingEngine(LlamaOptions(model_path=path, slots=1, context=64, threads=1, prefill_chunk=32))
    async with world([engine]) as w, w.client() as client:
        bare, framed = [6, 7], [2, 6, 7, 3]
        assert (await post(client, "/tokenize", content="cat sat"))["tokens"] == bare
        assert (await post(client, "/tokenize", content="cat sat", add_special=True))["tokens"] == framed
        assert (await post(client, "/tokenize", prompt="cat sat"))["tokens"] == framed
        assert (await post(client, "/tokenize", prompt="cat sat", add_special_tokens=False))["tokens"] == bare
        embedded = await post(client, "/v1/embeddings", input="cat sat")
        assert embedded["usage"]["prompt_tokens"] == 4
        assert embedded["data"] == (await post(client, "/v1/embeddings", input=framed))["data"]
        facts = (await client.get("/tokenizer_info")).json()
        assert (facts["bos_token"], facts["eos_token"], facts["chat_template"]) == ("[CLS]", "[SEP]", None)
        for route in ("/apply-template", "/tokenize"):
            error = await refusal(client, route, messages=MESSAGES)
            assert error["param"] == "messages"
            assert "chat template" in error["message"]
    engine.close()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"prompt": "x" * 32001}, "prompt"),
        ("/detokenize", {"tokens": [1, 32768]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "nobody", "content": "a"}]}, "messages[0].role"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_wrong_request_is_named(autojump_clock: MockClock, path: str, body: Any, param: str) -> None:
    async with world() as w, w.client() as client:
        assert (await refusal(client, path, **body))["param"] == param


async def test_other_methods_are_refused_and_a_full_server_still_answers(autojump_clock: MockClock) -> None:
    engine = FakeEngine(slots=1, step_seconds=lambda *_: 1.0)
    async with world([engine], max_batch=1, max_queue_size=0) as w, w.client() as client:
        assert (await client.get("/tokenize")).status_code == 405
        assert (await client.post("/tokenizer_info")).status_code == 405
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/v1/completions", json={"prompt": "a"}))
            await trio.sleep(0.5)
            assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 503
            assert len((await post(client, "/tokenize", content="two words"))["tokens"]) == 3


async def test_without_a_loaded_model_the_answer_is_503(autojump_clock: MockClock) -> None:
    async with world([FakeEngine(load_error="bad magic")]) as w, w.client() as client:
        for path, body in (("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [1]})):
            response = await client.post(path, json=body)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "model_failed"
        assert (await client.get("/tokenizer_info")).status_code == 503


async def test_what_waits_for_the_tokenizer_is_bounded(autojump_clock: MockClock, monkeypatch: Any) -> None:
    async with world() as w, w.client() as client:
        monkeypatch.setattr(type(w.preparing), "waiting", property(lambda self: w.scheduler.places))
        response = await client.post("/tokenize", json={"prompt": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
