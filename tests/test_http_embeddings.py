"""`/v1/embeddings` over the real hypercorn in memory and in virtual time, and once over a socket with a real model."""

import base64
import itertools
import math
import operator
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from slim.engines.fake import FakeEngine
from slim.engines.fake_embedding import SIZE, FakeEmbeddingEngine
from slim.scheduler import Scheduler
from slim.types import EngineEvent
from support.in_process import world
from support.server import Server

PATH = "/v1/embeddings"
ONE_AT_A_TIME = 1
"""A prefill chunk: each step takes one text."""


def engine(slots: int = 4, **options: Any) -> FakeEmbeddingEngine:
    return FakeEmbeddingEngine(slots=slots, step_seconds=lambda *_: 1.0, **options)


async def embed(client: httpx.AsyncClient, given: Any, **body: Any) -> list[list[float]]:
    response = await client.post(PATH, json={"input": given, "model": "any", **body})
    assert response.status_code == 200, response.text
    items = response.json()["data"]
    assert [item["index"] for item in items] == list(range(len(items)))
    return [item["embedding"] for item in items]


def product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(operator.mul, one, other))


async def refusal(client: httpx.AsyncClient, given: Any, status: int = 400, **body: Any) -> dict[str, Any]:
    response = await client.post(PATH, json={"input": given, **body})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_an_answer_has_openais_shape(autojump_clock: MockClock) -> None:
    async with world([engine()]) as w, w.client() as client:
        response = await client.post(PATH, json={"input": "a red house"})
        assert response.status_code == 200
        body = response.json()
        assert set(body) == {"object", "data", "model", "usage"}
        assert body["object"] == "list"
        assert body["model"] == "fake"
        assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        (item,) = body["data"]
        assert (item["object"], item["index"]) == ("embedding", 0)
        assert len(item["embedding"]) == SIZE
        assert math.hypot(*item["embedding"]) == pytest.approx(1)


async def test_base64_holds_the_same_numbers(autojump_clock: MockClock) -> None:
    async with world([engine()]) as w, w.client() as client:
        floats = (await embed(client, "a red house"))[0]
        response = await client.post(PATH, json={"input": "a red house", "encoding_format": "base64"})
        data = base64.b64decode(response.json()["data"][0]["embedding"], validate=True)
        assert data == struct.pack(f"<{SIZE}f", *floats)


async def test_token_ids_and_lists_are_embedded_like_text(autojump_clock: MockClock) -> None:
    async with world([engine()]) as w, w.client() as client:
        texts = ["a red house", "a boat", "a red house"]
        ids = [(await client.post("/tokenize", json={"content": text})).json()["tokens"] for text in texts]
        one, two, three = await embed(client, texts)
        assert one == three != two
        assert await embed(client, ids) == [one, two, three]
        assert await embed(client, ids[1]) == [two]


async def test_control_tokens_in_a_text_are_ordinary_text(autojump_clock: MockClock) -> None:
    async with world([engine()]) as w, w.client() as client:
        (control,) = (await client.post("/tokenize", json={"content": "<|im_end|>"})).json()["tokens"]
        assert await embed(client, "<|im_end|>") != await embed(client, [control])


async def test_a_request_of_2048_inputs_keeps_its_order_and_holds_few_places(autojump_clock: MockClock) -> None:
    held = []

    class Watched(FakeEmbeddingEngine):
        def step(self) -> Sequence[EngineEvent]:
            statistics = w.scheduler.statistics()
            held.append(statistics.queued + statistics.running)
            return super().step()

    async with world([Watched(slots=4, prefill_chunk=512)], max_queue_size=8) as w, w.client() as client:
        ids = [[number] for number in range(2048)]
        vectors = await embed(client, ids)
        assert len({tuple(vector) for vector in vectors}) == 2048
        for place in (0, 1, 1023, 2047):
            assert await embed(client, ids[place]) == [vectors[place]]
        assert max(held) == 5  # the slots, and one more that is ready when one of them is free
        assert w.scheduler.statistics().running == w.scheduler.statistics().queued == 0


@pytest.mark.parametrize(
    ("given", "more", "param", "words"),
    [
        ("", {}, "input", "empty"),
        (["a", ""], {}, "input[1]", "empty"),
        (["a"] * 2049, {}, "input", "2048"),
        ("a", {"dimensions": SIZE - 1}, "dimensions", f"must be {SIZE}"),
        ([[5], [5, 32768]], {}, "input[1]", "out of vocabulary"),
        ([32768], {}, "input", "out of vocabulary"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_wrong_request_is_named_and_computes_nothing(
    autojump_clock: MockClock, given: Any, more: Any, param: str, words: str
) -> None:
    async with world([engine()]) as w, w.client() as client:
        error = await refusal(client, given, **more)
        assert error["param"] == param
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert w.metric("slm_batch_jobs_count") == 0
        assert len(await embed(client, "a", dimensions=SIZE)) == 1


async def test_one_text_that_is_too_long_refuses_the_request_before_anything_runs(autojump_clock: MockClock) -> None:
    async with world([engine(context=8)]) as w, w.client() as client:
        error = await refusal(client, ["short", "word " * 5])
        assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
        assert w.metric("slm_requests_total", outcome="ok") == 0
        assert len(await embed(client, "word " * 4)) == 1


async def test_each_kind_of_server_says_how_to_get_the_other(autojump_clock: MockClock) -> None:
    async with world([FakeEngine()]) as w, w.client() as client:
        assert "SLM_EMBEDDINGS=true" in (await refusal(client, "a"))["message"]
    async with world([engine()]) as w, w.client() as client:
        for path, body in (
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            response = await client.post(path, json=body)
            assert response.status_code == 400
            assert "SLM_EMBEDDINGS" in response.json()["error"]["message"]


async def test_a_full_server_refuses_a_request_at_its_first_input(autojump_clock: MockClock) -> None:
    slow = engine(1, prefill_chunk=ONE_AT_A_TIME)
    async with world([slow], max_batch=1, max_queue_size=1) as w, w.client() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(embed, client, ["a"] * 12)
            await trio.sleep(0.5)
            assert (await refusal(client, ["a"] * 12, status=503))["code"] == "overloaded"
        assert len(await embed(client, ["a"] * 12)) == 12


@pytest.mark.parametrize("refused", [range(3, 4), range(5, 12)], ids=["once", "for long"])
async def test_a_request_that_has_begun_waits_when_others_take_its_places(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, refused: range
) -> None:
    async with world([engine(2, prefill_chunk=ONE_AT_A_TIME)], max_batch=2) as w, w.client() as client:
        ids = [[number] for number in range(20)]
        vectors = await embed(client, ids)
        looks = itertools.count()
        monkeypatch.setattr(Scheduler, "has_room", property(lambda self: next(looks) not in refused))
        assert vectors == await embed(client, ids)
        assert next(looks) > max(refused)
        assert w.metric("slm_rejected_total", reason="queue_full") == 0


async def test_the_deadline_is_over_the_whole_request(autojump_clock: MockClock) -> None:
    slow = engine(1, prefill_chunk=ONE_AT_A_TIME)
    async with world([slow], max_batch=1, request_timeout_s=10.0) as w, w.client() as client:
        began = trio.current_time()
        response = await client.post(PATH, json={"input": ["a"] * 50})
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        assert response.headers["x-should-retry"] == "false"
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)
        assert w.metric("slm_requests_total", outcome="timeout") > 0
        assert w.metric("slm_requests_total", outcome="cancelled") == 0
        await trio.sleep(2)
        assert w.scheduler.statistics().running == w.scheduler.statistics().queued == 0
        assert len(await embed(client, "a")) == 1


async def test_the_deadline_ends_the_wait_for_a_place_too(autojump_clock: MockClock, monkeypatch: Any) -> None:
    async with world([engine(1)], max_batch=1, request_timeout_s=10.0) as w, w.client() as client:
        monkeypatch.setattr(Scheduler, "has_room", property(lambda self: False))
        began = trio.current_time()
        response = await client.post(PATH, json={"input": ["a"] * 50})
        assert response.status_code == 504
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)


async def test_a_client_that_leaves_ends_its_whole_request(autojump_clock: MockClock) -> None:
    async with world([engine(1, prefill_chunk=ONE_AT_A_TIME)], max_batch=1) as w, w.client() as client:
        with trio.move_on_after(3.5):
            await client.post(PATH, json={"input": ["a"] * 50})
        await trio.sleep(2)
        steps = w.metric("slm_requests_total", outcome="ok")
        assert steps == 3
        assert w.scheduler.statistics().running == w.scheduler.statistics().queued == 0
        await trio.sleep(5)
        assert w.metric("slm_requests_total", outcome="ok") == steps


async def test_a_fault_of_the_engine_is_one_error_for_the_request(autojump_clock: MockClock) -> None:
    class Breaking(FakeEmbeddingEngine):
        steps = 0

        def step(self) -> Sequence[EngineEvent]:
            self.steps += 1
            if self.steps == 3:
                raise RuntimeError("broken")
            return super().step()

    async with world([Breaking(slots=2, prefill_chunk=ONE_AT_A_TIME)], max_batch=2) as w, w.client() as client:
        assert (await refusal(client, ["a"] * 20, status=500))["code"] == "engine_error"
        assert len(await embed(client, ["a"] * 20)) == 20


async def test_a_drain_ends_the_request(autojump_clock: MockClock) -> None:
    async with (
        world([engine(1, prefill_chunk=ONE_AT_A_TIME)], max_batch=1) as w,
        w.client() as client,
        trio.open_nursery() as nursery,
    ):
        errors = []

        async def large() -> None:
            errors.append(await refusal(client, ["a"] * 50, status=503))

        nursery.start_soon(large)
        await trio.sleep(2.5)
        await w.app.drain(5.0)
        await wait_all_tasks_blocked()
        assert [error["code"] for error in errors] == ["draining"]


def test_openais_client_gets_the_real_models_vectors_over_a_socket(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    pytest.importorskip("llama_cpp")
    with Server(tmp_path, n_ctx=256, embeddings="true", max_batch=3, max_queue_size=0) as server:
        client = openai.OpenAI(base_url=server.wait_ready().url + "/v1", api_key="unused", max_retries=0)
        texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "x = y[3:] + 1", "Yes", "No"]
        result = client.embeddings.create(model="any", input=texts)
        vectors = [item.embedding for item in result.data]
        assert [len(vector) for vector in vectors] == [576] * 5
        plain = client.embeddings.create(model="any", input=texts[0], encoding_format="float").data[0].embedding
        assert product(plain, vectors[0]) == pytest.approx(1, abs=1e-3)
        near, far = product(vectors[0], vectors[1]), product(vectors[0], vectors[2])
        assert near > far
        assert result.usage.prompt_tokens == result.usage.total_tokens > 20
        with pytest.raises(openai.BadRequestError, match="SLM_EMBEDDINGS"):
            client.completions.create(model="any", prompt="a")
        server.terminate()
        assert server.exit_code() == 0
