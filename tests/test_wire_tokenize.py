"""Bodies and answers of the tokenizer's routes, in the two forms that clients speak."""

import json
from typing import Any

import pytest

from slim.errors import InvalidRequest
from slim.types import ChatPrompt, Segment
from slim.wire.requests import RequestLimits
from slim.wire.tokenize import (
    TokenizeCall,
    detokenized,
    parse_detokenize,
    parse_template_request,
    parse_tokenize,
    template_applied,
    tokenized,
    tokenizer_info,
)

LIMITS = RequestLimits(max_tokens=16, max_prompt_chars=100, places=8)
MESSAGES = [{"role": "user", "content": "hi"}]


def body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def tokenize(**fields: Any) -> TokenizeCall:
    return parse_tokenize(body(fields), LIMITS)


def test_llama_servers_form_has_its_defaults() -> None:
    assert tokenize(content="a") == TokenizeCall(Segment("a", True), leading=False, pieces=False, counted=False)
    full = tokenize(content="", add_special=True, parse_special=False, with_pieces=True)
    assert full == TokenizeCall(Segment("", False), leading=True, pieces=True, counted=False)


def test_vllms_form_has_its_defaults() -> None:
    assert tokenize(prompt="a", model="x") == TokenizeCall(Segment("a", True), True, pieces=False, counted=True)
    full = tokenize(prompt="a", add_special_tokens=False, return_token_strs=True)
    assert full == TokenizeCall(Segment("a", True), leading=False, pieces=True, counted=True)


def test_a_conversation_is_read_as_a_chat_request_reads_it() -> None:
    call = tokenize(messages=MESSAGES, return_token_strs=True, add_generation_prompt=True)
    assert isinstance(call.prompt, ChatPrompt)
    assert call.prompt.messages == ({"role": "user", "content": "hi"},)
    assert (call.leading, call.pieces, call.counted) == (True, True, True)
    assert not tokenize(messages=MESSAGES, add_special_tokens=False).leading
    assert parse_template_request(body({"messages": MESSAGES, "temperature": "ignored"}), LIMITS) == call.prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"content": "a", "prompt": "a"}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "messages"),
        ({"content": 5}, "content"),
        ({"content": [1, "a"]}, "content"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens"),
        ({"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ({"content": "a", "with_pieces": 1}, "with_pieces"),
        ({"content": "\ud800"}, "content"),
        ({"content": "x" * 101}, "content"),
        ({"prompt": "x" * 101}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": MESSAGES, "return_token_strs": 1}, "return_token_strs"),
        ({"messages": MESSAGES, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": [{"role": "user", "content": "x" * 101}]}, "messages"),
    ],
    ids=str,
)
def test_a_bad_tokenize_body_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tokenize(body(fields), LIMITS)
    assert caught.value.param == param


def test_every_bad_field_of_a_conversation_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        tokenize(messages=[{"role": "x"}], return_token_strs=1, add_special_tokens="no", tools=5, chat_template="x")
    for path in ("messages[0].role", "return_token_strs", "add_special_tokens", "tools", "chat_template"):
        assert f"{path}: " in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "tokens"),
        ({"tokens": "1"}, "tokens"),
        ({"tokens": [1, -1]}, "tokens[1]"),
        ({"tokens": [True]}, "tokens[0]"),
        ({"tokens": [1, 2, 3.0]}, "tokens[2]"),
        ({"tokens": [2**31]}, "tokens[0]"),
        ({"tokens": [[1]]}, "tokens[0]"),
    ],
    ids=str,
)
def test_a_bad_detokenize_body_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_detokenize(body(fields))
    assert caught.value.param == param


def test_ids_are_read_as_they_are() -> None:
    assert parse_detokenize(body({"tokens": [0, 5, 2**31 - 1], "model": "x"})) == (0, 5, 2**31 - 1)
    assert parse_detokenize(body({"tokens": []})) == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": 5}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"a": "x" * 101}}, "chat_template_kwargs"),
    ],
    ids=str,
)
def test_a_bad_template_request_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_template_request(body(fields), LIMITS)
    assert caught.value.param == param


HALF = b"\xf0\x9f"


def answer(call: TokenizeCall) -> Any:
    return json.loads(tokenized(call, (5, 6), (b" cat", HALF), 128))


def test_each_form_answers_in_its_own_shape() -> None:
    assert answer(tokenize(content="a")) == {"tokens": [5, 6]}
    assert answer(tokenize(content="a", with_pieces=True)) == {
        "tokens": [{"id": 5, "piece": " cat"}, {"id": 6, "piece": list(HALF)}]
    }
    counted = {"count": 2, "max_model_len": 128, "tokens": [5, 6]}
    assert answer(tokenize(prompt="a")) == {**counted, "token_strs": None}
    assert answer(tokenize(prompt="a", return_token_strs=True)) == {**counted, "token_strs": [" cat", "\ufffd"]}


def test_a_detokenized_text_has_the_names_of_both_forms() -> None:
    assert json.loads(detokenized("naïve 😀".encode())) == {"content": "naïve 😀", "prompt": "naïve 😀"}
    assert json.loads(detokenized(b"a" + HALF))["content"] == "a\ufffd"


def test_an_applied_template_is_one_text() -> None:
    assert json.loads(template_applied([Segment("<s>", True), Segment("</s>", False)])) == {"prompt": "<s></s>"}


def test_the_tokenizers_facts_have_hugging_faces_names_and_null_for_what_is_missing() -> None:
    assert json.loads(tokenizer_info(bos="", eos="</s>", chat_template=None, context=64)) == {
        "bos_token": None,
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": None,
        "model_max_length": 64,
    }
