"""Chat over HTTP: the whole pipeline from a script of tokens to what a client reads, in virtual time."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from slim.engines.fake import FakeEngine
from support.in_process import world

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def scripted(text: str | Sequence[bytes], size: int = 3, **options: Any) -> FakeEngine:
    """An engine that says this text, cut into tokens of `size` bytes."""
    data = text.encode() if isinstance(text, str) else b""
    script = [data[i : i + size] for i in range(0, len(data), size)] if isinstance(text, str) else list(text)
    return FakeEngine(step_seconds=lambda *_: 0.1, script=script, **options)


async def chat(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(CHAT, json={"messages": HELLO, **body})


async def chunks(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream that ends well."""
    response = await chat(client, stream=True, **body)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def joined(events: Sequence[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """What a client makes of the deltas of a choice, as OpenAI's packages do."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}, "finish_reason": []}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                known = message["tool_calls"].setdefault(call["index"], {"arguments": ""})
                function = call["function"]
                known["arguments"] += function.get("arguments", "")
                if "id" in call:
                    known |= {"id": call["id"], "name": function["name"]}
            if choice["finish_reason"] is not None:
                message["finish_reason"].append(choice["finish_reason"])
    return message


async def test_a_chat_has_openais_shape(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        body = (await chat(client, max_tokens=3)).json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    (choice,) = body["choices"]
    message = choice["message"]
    assert (message["role"], message["refusal"], choice["finish_reason"]) == ("assistant", None, "length")
    assert len(message["content"].split()) == 3
    assert set(message) == {"role", "content", "refusal"}  # C081: nothing empty that strict clients don't know
    assert body["usage"]["completion_tokens"] == 3
    assert body["timings"]["predicted_n"] == 3


async def test_a_stream_names_its_speaker_once_and_ends_once(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        events = await chunks(client, max_tokens=3)
        whole = (await chat(client, max_tokens=3)).json()["choices"][0]["message"]["content"]
    assert [event["choices"][0]["delta"].get("role") for event in events] == ["assistant", None, None, None, None]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert joined(events)["content"] == whole
    assert joined(events)["finish_reason"] == ["length"]
    assert events[-1]["choices"][0]["delta"] == {}
    assert all(len(event["choices"]) == 1 for event in events)  # C071
    assert not any("usage" in event for event in events)


async def test_usage_comes_last_and_only_when_asked(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        events = await chunks(client, max_tokens=3, stream_options={"include_usage": True})
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("size", [1, 3, 200])
async def test_a_tool_call_is_assembled_from_its_deltas(autojump_clock: MockClock, size: int) -> None:
    async with world([scripted("Let me see. " + CALL, size)]) as w, w.client() as client:
        events = await chunks(client, tools=[WEATHER], max_tokens=200)
        whole = (await chat(client, tools=[WEATHER], max_tokens=200)).json()["choices"][0]
    message = joined(events)
    (call,) = message["tool_calls"].values()
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Bern"})
    assert call["id"].startswith("call_")
    assert message["content"].strip() == "Let me see."
    assert message["finish_reason"] == ["tool_calls"]
    (same,) = whole["message"]["tool_calls"]
    assert (same["type"], same["function"]["name"]) == ("function", "weather")
    assert same["function"]["arguments"] == call["arguments"]
    assert whole["finish_reason"] == "tool_calls"


async def test_each_delta_of_a_call_has_its_index_and_only_the_first_its_name(autojump_clock: MockClock) -> None:
    async with world([scripted(CALL + "\n" + CALL)]) as w, w.client() as client:
        events = await chunks(client, tools=[WEATHER], max_tokens=200)
    deltas = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    for index in (0, 1):
        first, *rest = [delta for delta in deltas if delta["index"] == index]
        assert first["type"] == "function"
        assert first["function"]["name"] == "weather"
        assert all(set(delta) == {"index", "function"} for delta in rest)
        assert len(rest) > 1  # the arguments come as they are made
    assert len({call["id"] for call in joined(events)["tool_calls"].values()}) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_cut_by_the_limit_says_length(autojump_clock: MockClock, streamed: bool) -> None:
    async with world([scripted(CALL, 4)]) as w, w.client() as client:
        if streamed:
            assert joined(await chunks(client, tools=[WEATHER], max_tokens=14))["finish_reason"] == ["length"]
        else:
            body = (await chat(client, tools=[WEATHER], max_tokens=14)).json()
            assert body["choices"][0]["finish_reason"] == "length"


async def test_a_whole_call_in_one_token_still_ends_with_its_reason(autojump_clock: MockClock) -> None:
    async with world([scripted([CALL.encode(), b""])]) as w, w.client() as client:
        assert joined(await chunks(client, tools=[WEATHER], max_tokens=9))["finish_reason"] == ["tool_calls"]


def thinking(text: str, size: int = 3) -> FakeEngine:
    return scripted(text, size, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}{# <think></think> #}")


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_reasoning_is_told_apart(autojump_clock: MockClock, size: int) -> None:
    async with world([thinking("<think>weighing it</think>Answer.", size)]) as w, w.client() as client:
        message = joined(await chunks(client, max_tokens=100))
        whole = (await chat(client, max_tokens=100)).json()["choices"][0]["message"]
        plain = (await chat(client, max_tokens=100, reasoning_format="none")).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("weighing it", "Answer.")
    assert (whole["reasoning_content"], whole["content"]) == ("weighing it", "Answer.")
    assert plain["content"] == "<think>weighing it</think>Answer."
    assert "reasoning_content" not in plain


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_ends_the_reasoning_too_and_leaks_no_mark(
    autojump_clock: MockClock, streamed: bool
) -> None:
    """C013, C119: what the stop matcher held back passes the parser like everything else."""
    async with world([thinking("<think>one two</th", 1)]) as w, w.client() as client:
        if streamed:
            message = joined(await chunks(client, max_tokens=100, stop=["</thing>", "wo"]))
        else:
            message = (await chat(client, max_tokens=100, stop=["</thing>", "wo"])).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "one t"
    assert not message["content"]


async def test_choices_of_a_chat_are_streamed_side_by_side(autojump_clock: MockClock) -> None:
    async with world(max_batch=4) as w, w.client() as client:
        events = await chunks(client, max_tokens=3, n=2, seed=1)
        whole = (await chat(client, max_tokens=3, n=2, seed=1)).json()
    assert [joined(events, index)["content"] for index in (0, 1)] == [
        choice["message"]["content"] for choice in whole["choices"]
    ]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert [joined(events, index)["finish_reason"] for index in (0, 1)] == [["length"], ["length"]]


@pytest.mark.parametrize("streamed", [False, True])
async def test_log_probabilities_come_with_their_tokens(autojump_clock: MockClock, streamed: bool) -> None:
    async with world() as w, w.client() as client:
        wanted = {"logprobs": True, "top_logprobs": 2, "max_tokens": 3}
        if streamed:
            events = await chunks(client, **wanted)
            entries = [e for event in events for e in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
            text = joined(events)["content"]
        else:
            choice = (await chat(client, **wanted)).json()["choices"][0]
            entries, text = choice["logprobs"]["content"], choice["message"]["content"]
    assert len(entries) == 3
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_progress_is_told_before_the_first_text(autojump_clock: MockClock) -> None:
    engine = FakeEngine(slots=1, prefill_chunk=4, step_seconds=lambda *_: 1.0)
    async with world([engine], max_batch=1) as w, w.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: chat(client, max_tokens=5))
        await wait_all_tasks_blocked()
        events = await chunks(client, max_tokens=2, return_progress=True)
        nursery.cancel_scope.cancel()
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told[0]["queue_position"] == 0
    assert [one["processed"] for one in told] == sorted(one["processed"] for one in told)
    assert told[-1]["processed"] == told[-1]["total"]
    assert all(event["choices"] for event in events)
    assert joined(events)["finish_reason"] == ["length"]


@pytest.mark.parametrize(("interval", "comments"), [(5.0, 5), (0.0, 0)])
async def test_a_silent_stream_shows_that_it_lives(autojump_clock: MockClock, interval: float, comments: int) -> None:
    """C079: a prompt that takes long, and a proxy that cuts silent connections."""
    engine = FakeEngine(step_seconds=lambda decoding, prompt: 28.0 if prompt else 1.0)
    async with world([engine], sse_keepalive_s=interval) as w, w.client() as client:
        response = await chat(client, stream=True, max_tokens=2)
    assert response.text.count(": keep-alive\n\n") == comments
    assert response.text.endswith("data: [DONE]\n\n")


async def test_comments_come_only_in_silence(autojump_clock: MockClock) -> None:
    async with world(sse_keepalive_s=3.0) as w, w.client() as client:
        response = await chat(client, stream=True, max_tokens=20)
    assert ": keep-alive" not in response.text


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_template_refuses_is_400_in_its_own_words(autojump_clock: MockClock, streamed: bool) -> None:
    engine = FakeEngine(chat_template="{{ raise_exception('Roles must alternate') }}")
    async with world([engine]) as w, w.client() as client:
        response = await chat(client, stream=streamed)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert "Roles must alternate" in error["message"]


async def test_a_model_without_a_template_has_no_chat(autojump_clock: MockClock) -> None:
    async with world([FakeEngine(chat_template=None)]) as w, w.client() as client:
        response = await chat(client)
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
    assert response.status_code == 400
    assert "SLM_CHAT_TEMPLATE" in response.json()["error"]["message"]


async def test_a_conversation_that_fills_the_context_is_400(autojump_clock: MockClock) -> None:
    async with world([FakeEngine(context=64)]) as w, w.client() as client:
        response = await chat(client, messages=[{"role": "user", "content": "word " * 100}], stream=True)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


async def test_without_max_tokens_the_servers_limit_ends_the_answer(autojump_clock: MockClock) -> None:
    """C066: a model that never ends."""
    async with world(max_tokens_limit=20) as w, w.client() as client:
        choice = (await chat(client)).json()["choices"][0]
        above = (await chat(client, max_tokens=10_000)).json()["choices"][0]
    assert choice["finish_reason"] == above["finish_reason"] == "length"
    assert len(choice["message"]["content"].split()) == len(above["message"]["content"].split()) == 20


async def test_json_is_json(autojump_clock: MockClock) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with world() as w, w.client() as client:
        choice = (await chat(client, response_format=wanted, max_tokens=200)).json()["choices"][0]
        events = await chunks(client, response_format=wanted, max_tokens=200)
    value = json.loads(choice["message"]["content"])
    assert value["kind"] in ("a", "b")
    assert 1 <= value["count"] <= 5
    assert choice["finish_reason"] == "stop"
    assert joined(events)["content"] == choice["message"]["content"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_schema_that_cant_be_honoured_is_400(autojump_clock: MockClock, streamed: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with world() as w, w.client() as client:
        response = await chat(client, response_format=wanted, stream=streamed)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"].endswith("properties.a.not")


async def test_a_forced_call_has_arguments_by_its_schema(autojump_clock: MockClock) -> None:
    async with world(request_timeout_s=1000.0) as w, w.client() as client:
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            body = (await chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=300)).json()
            (answer,) = body["choices"]
            (call, *_) = answer["message"]["tool_calls"]
            assert call["function"]["name"] == "weather"
            assert isinstance(json.loads(call["function"]["arguments"])["city"], str)
            assert answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("script", "status"), [([RuntimeError("broken")], 500), (None, 504)])
async def test_an_error_before_the_first_text_of_a_stream_is_a_status(
    autojump_clock: MockClock, script: list[Any] | None, status: int
) -> None:
    engine = FakeEngine(script=script, step_seconds=lambda *_: 1.0 if script else 100.0)
    async with world([engine], sse_keepalive_s=0.0) as w, w.client() as client:
        response = await chat(client, stream=True)
    assert (response.status_code, response.json()["error"]["param"]) == (status, None)


async def test_text_that_came_before_an_error_is_not_lost(autojump_clock: MockClock) -> None:
    async with world([FakeEngine(script=[b"one", b" two", RuntimeError("broken")])]) as w, w.client() as client:
        response = await chat(client, stream=True)
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
    assert joined(events[:-1])["content"] == "one two"
    assert events[-1]["error"]["code"] == "engine_error"


async def test_a_schema_of_a_tool_that_cant_be_honoured_gives_way_where_the_model_may_choose(
    autojump_clock: MockClock,
) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    async with world() as w, w.client() as client:
        assert (await chat(client, tools=[WEATHER, odd], max_tokens=5)).status_code == 200
        forced = await chat(client, tools=[WEATHER, odd], tool_choice="required", max_tokens=5)
    assert forced.status_code == 400
    assert forced.json()["error"]["param"].startswith("tools[1].function.parameters")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_a_stop_string_cuts_is_no_call_to_make(autojump_clock: MockClock, stream: bool) -> None:
    script = [b"""<tool_call>{"name": "weather", "arguments": {\"""", b"""city": "Paris"}}</tool_call>"""]
    async with world([FakeEngine(script=script)]) as w, w.client() as client:
        body = {"tools": [WEATHER], "stop": ["city"], "stream": stream}
        response = await chat(client, **body)
    assert '"finish_reason":"stop"' in response.text
    assert '"finish_reason":"tool_calls"' not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_what_looks_like_the_beginning_of_a_mark_comes_out_at_the_end(
    autojump_clock: MockClock, stream: bool
) -> None:
    async with world([FakeEngine(script=[b"1 < 2 ", b"<tool"])]) as w, w.client() as client:
        if stream:
            assert joined(await chunks(client, tools=[WEATHER]))["content"] == "1 < 2 <tool"
        else:
            (choice,) = (await chat(client, tools=[WEATHER])).json()["choices"]
            assert choice["message"]["content"] == "1 < 2 <tool"
