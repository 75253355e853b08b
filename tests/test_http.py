"""The HTTP contract, over the real hypercorn in memory and in virtual time."""

import gzip
import itertools
import json
from typing import Any

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock, wait_all_tasks_blocked

from slim.engines.fake import FakeEngine, JobFault
from support.in_process import world
from support.sse import read_events

COMPLETIONS = "/v1/completions"


def engine(slots: int = 4, **options: Any) -> FakeEngine:
    return FakeEngine(slots=slots, step_seconds=lambda *_: 1.0, **options)


async def complete(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(COMPLETIONS, json={"prompt": "a prompt", **body})


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, which has OpenAI's four keys on every path."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


async def test_a_completion_has_openais_shape(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await complete(client, max_tokens=3)
        assert response.status_code == 200
        body = response.json()
        assert body["id"].startswith("cmpl-")
        assert body["object"] == "text_completion"
        assert body["model"] == "fake"
        assert body["created"] > 0
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["index"] == 0
        assert len(choice["text"].split()) == 3
        assert body["usage"]["prompt_tokens"] == 3
        assert body["usage"]["completion_tokens"] == 3
        assert body["usage"]["total_tokens"] == 6
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stream_comes_token_by_token_and_equals_the_whole_answer(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        whole = (await complete(client, max_tokens=5)).json()["choices"][0]["text"]
        times, chunks, last = [], [], ""
        async with client.stream(
            "POST", COMPLETIONS, json={"prompt": "a prompt", "max_tokens": 5, "stream": True}
        ) as r:
            assert r.status_code == 200
            assert r.headers["content-type"].startswith("text/event-stream")
            async for line in r.aiter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line[6:]))
                    times.append(trio.current_time())
                last = line or last
        assert last == "data: [DONE]"
        assert "".join(c["choices"][0]["text"] for c in chunks) == whole
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 5 + ["length"]
        assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
        assert all("usage" not in c for c in chunks)
        assert [after - before for before, after in itertools.pairwise(times[:5])] == pytest.approx([1.0] * 4)


async def test_usage_comes_in_a_stream_only_when_asked_for(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await complete(client, max_tokens=2, stream=True, stream_options={"include_usage": True})
        *chunks, done = read_events(response.content)
        assert done == "[DONE]"
        *text, usage = map(json.loads, chunks)
        assert all(c["choices"] and c["usage"] is None for c in text)
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 2


async def test_usage_counts_tokens_and_not_chunks(autojump_clock: MockClock) -> None:
    async with world([engine(script=[b"\xf0", b"\x9f", b"\x98", b"\x80", b" ok"])]) as w, w.client() as client:
        body = (await complete(client)).json()
        assert body["choices"][0]["text"] == "\N{GRINNING FACE} ok"
        assert body["usage"]["completion_tokens"] == 5


async def test_ids_are_unique_even_when_a_client_repeats_its_request_id(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        ids = []

        async def one() -> None:
            response = await client.post(COMPLETIONS, json={"prompt": "x"}, headers={"X-Request-ID": "same"})
            assert response.status_code == 200
            assert response.headers["x-request-id"] == "same"
            ids.append(response.json()["id"])

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        assert len(set(ids)) == 3


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "\x1b[31m", "a\tb", "é", ""])
async def test_an_unsafe_request_id_is_replaced(autojump_clock: MockClock, sent: str) -> None:
    async with world() as w, w.client() as client:
        response = await client.get("/healthz", headers={"X-Request-ID": sent.encode("latin-1")})
        assert response.status_code == 200
        assert response.headers["x-request-id"].isalnum()
        assert len(response.headers["x-request-id"]) == 16


@pytest.mark.parametrize(
    "field", ["max_tokens", "temperature", "top_p", "seed", "stop", "stream", "n", "stream_options"]
)
async def test_null_means_absent(autojump_clock: MockClock, field: str) -> None:
    async with world() as w, w.client() as client:
        response = await complete(client, **{field: None})
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 16


async def test_a_bad_request_names_every_bad_field_and_costs_no_place(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await client.post(COMPLETIONS, json={"prompt": 5, "max_tokens": "10", "temperature": 3})
        assert response.status_code == 400
        error = error_of(response)
        assert error["type"] == "invalid_request_error"
        assert error["param"] in ("prompt", "max_tokens", "temperature")
        for field in ("prompt", "max_tokens", "temperature"):
            assert field in error["message"]
        assert w.metric("slm_requests_total", outcome="ok") == 0


async def test_a_bad_request_for_a_stream_is_a_status_and_not_a_stream(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await complete(client, stream=True, max_tokens=10**6)
        assert response.status_code == 400
        assert "1024" in error_of(response)["message"]


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b'"x"', b"42", b"{{{", b"\xff\xfe", b'{"prompt": NaN}', b'{"prompt":"\\ud83d"}']
)
async def test_a_body_that_is_no_request_is_400(autojump_clock: MockClock, body: bytes) -> None:
    async with world() as w, w.client() as client:
        response = await client.post(COMPLETIONS, content=body)
        assert response.status_code == 400
        assert error_of(response)["type"] == "invalid_request_error"
        assert (await complete(client)).status_code == 200


async def test_a_prompt_longer_than_the_context_is_400_before_any_event(autojump_clock: MockClock) -> None:
    async with world([engine(context=16)]) as w, w.client() as client:
        for stream in (False, True):
            response = await complete(client, prompt="word " * 50, stream=stream)
            assert response.status_code == 400
            error = error_of(response)
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "prompt"
            assert "maximum context length is 16 tokens" in error["message"]
        response = await complete(client, prompt="one two three four five six seven e", max_tokens=10)
        assert response.json()["usage"] | {"prompt_tokens_details": 0} == {
            "prompt_tokens": 15,
            "completion_tokens": 1,
            "total_tokens": 16,
            "prompt_tokens_details": 0,
        }


@pytest.mark.parametrize("stream", [False, True])
async def test_overload_is_a_real_status_with_a_hint_even_for_a_stream(autojump_clock: MockClock, stream: bool) -> None:
    async with (
        world([engine(1)], max_batch=1, max_queue_size=0) as w,
        w.client() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: complete(client, max_tokens=1000))
        await wait_all_tasks_blocked()
        before = trio.current_time()
        response = await complete(client, stream=stream)
        assert trio.current_time() - before < 0.05
        assert response.status_code == 503
        assert error_of(response)["code"] == "overloaded"
        assert error_of(response)["type"] == "service_unavailable_error"
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert 1 <= int(response.headers["retry-after-ms"]) <= 60000
        assert "x-should-retry" not in response.headers
        nursery.cancel_scope.cancel()


async def test_a_missed_deadline_is_504_that_clients_do_not_retry(autojump_clock: MockClock) -> None:
    async with world([engine(prefill_chunk=1)], request_timeout_s=5.0) as w, w.client() as client:
        for stream in (False, True):
            response = await complete(client, prompt="word " * 100, stream=stream)
            assert response.status_code == 504
            assert error_of(response)["type"] == "timeout_error"
            assert error_of(response)["code"] == "deadline_exceeded"
            assert response.headers["x-should-retry"] == "false"


async def test_a_deadline_inside_a_stream_is_an_event_and_no_done(autojump_clock: MockClock) -> None:
    async with world([engine()], request_timeout_s=5.0) as w, w.client() as client:
        response = await complete(client, stream=True, max_tokens=100)
        *chunks, last = read_events(response.content)
        assert response.status_code == 200
        assert chunks
        assert json.loads(last)["error"]["code"] == "deadline_exceeded"
        assert all(json.loads(c)["choices"][0]["finish_reason"] is None for c in chunks)


async def test_an_engine_fault_is_500_or_an_event_and_the_server_serves_on(autojump_clock: MockClock) -> None:
    fake = engine(script=[JobFault("secret detail")])
    async with world([fake]) as w, w.client() as client:
        response = await complete(client)
        assert response.status_code == 500
        assert error_of(response)["code"] == "engine_error"
        assert error_of(response)["type"] == "server_error"
        assert "secret" not in response.text
        fake.script = [b"one", b" two", JobFault("secret detail")]
        *chunks, last = read_events((await complete(client, stream=True)).content)
        assert len(chunks) == 2
        assert json.loads(last)["error"]["code"] == "engine_error"
        fake.script = None
        assert (await complete(client)).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"regex": "(a*)*" * 700}, "regex", "The grammar can't go on"),
        ({"regex": "\u00e9", "logit_bias": {"195": -100}}, "regex", "No token may come"),
    ],
    ids=["limit", "nothing left"],
)
async def test_a_grammar_that_ends_in_nothing_is_the_requests_fault(
    autojump_clock: MockClock, fields: dict[str, Any], param: str, reason: str
) -> None:
    async with world() as w, w.client() as client:
        response = await complete(client, **fields)
        assert response.status_code == 400
        error = error_of(response)
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "unanswerable", param)
        assert error["message"].startswith(reason)
        assert w.metric("slm_requests_total", outcome="unanswerable") == 1


async def test_a_handler_that_raises_is_an_openai_shaped_500(autojump_clock: MockClock, monkeypatch: Any) -> None:
    async with world() as w, w.client() as client:

        def broken(*_: Any) -> None:
            raise KeyError("secret")

        monkeypatch.setattr(w.scheduler, "submit", broken)
        response = await complete(client)
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
        assert "secret" not in response.text


async def leave_early(client: httpx.AsyncClient, seconds: float, **body: Any) -> None:
    with trio.move_on_after(seconds):
        async with client.stream("POST", COMPLETIONS, json={"prompt": "a prompt", **body}) as response:
            await response.aread()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot_within_one_step(autojump_clock: MockClock, stream: bool) -> None:
    async with world([engine(1)], max_batch=1) as w, w.client() as client:
        await leave_early(client, 5.5, max_tokens=1000, stream=stream)
        await trio.sleep(1.5)
        assert w.engines[0].kv_used == 0
        assert w.metric("slm_requests_total", outcome="cancelled") == 1


async def test_a_client_that_leaves_the_queue_gives_its_place_to_the_next(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, max_queue_size=1) as w, w.client() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave_early, client, 1e9)  # runs for 16 s
            await wait_all_tasks_blocked()
            await leave_early(client, 2.0)
            await wait_all_tasks_blocked()
            assert (await complete(client, max_tokens=2)).status_code == 200
        assert w.metric("slm_generated_tokens_total") == 18
        assert w.metric("slm_requests_total", outcome="cancelled") == 1


async def test_a_client_that_leaves_in_prefill_frees_its_slot_within_one_chunk(autojump_clock: MockClock) -> None:
    async with world([engine(1, prefill_chunk=1)], max_batch=1) as w, w.client() as client:
        await leave_early(client, 20.5, prompt="word " * 50)
        await trio.sleep(1.5)
        assert w.engines[0].kv_used == 0
        assert w.metric("slm_generated_tokens_total") == 0


async def test_probes_answer_while_everything_is_full(autojump_clock: MockClock) -> None:
    async with (
        world([engine(1)], max_batch=1, max_queue_size=0) as w,
        w.client() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(leave_early, client, 1e9)
        await wait_all_tasks_blocked()
        before = trio.current_time()
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.get("/metrics")).status_code == 200
        assert trio.current_time() - before < 0.05
        nursery.cancel_scope.cancel()


async def test_a_model_that_failed_to_load_is_told_by_readiness_and_by_requests(autojump_clock: MockClock) -> None:
    async with world([engine(load_error="bad magic")]) as w, w.client() as client:
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["status"] == "failed"
        assert "bad magic" in ready.json()["error"]
        assert (await client.get("/healthz")).status_code == 200
        response = await complete(client)
        assert response.status_code == 503
        assert error_of(response)["code"] == "model_failed"


async def test_a_stalled_engine_is_told_by_readiness_and_by_requests(autojump_clock: MockClock) -> None:
    async with world([engine(1)], stall_s=10.0) as w, w.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(leave_early, client, 1e9)
        await trio.sleep(2)
        w.replicas[0].hang = True
        await trio.sleep(12)
        assert (await client.get("/readyz")).json()["status"] == "stalled"
        assert error_of(await complete(client))["code"] == "stalled"
        assert (await client.get("/healthz")).status_code == 200
        nursery.cancel_scope.cancel()


async def test_draining_is_told_by_readiness_and_by_requests(autojump_clock: MockClock) -> None:
    async with world([engine(1)]) as w, w.client() as client:
        async with trio.open_nursery() as nursery:
            answers: list[httpx.Response] = []

            async def one() -> None:
                answers.append(await complete(client, max_tokens=1000, stream=True))

            nursery.start_soon(one)
            await trio.sleep(3.5)
            nursery.start_soon(w.scheduler.drain, 10.0)
            await wait_all_tasks_blocked()
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "draining")
            response = await complete(client)
            assert (response.status_code, error_of(response)["code"]) == (503, "draining")
        last = read_events(answers[0].content)[-1]
        assert json.loads(last)["error"]["code"] == "draining"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/completions/", 404),
        ("POST", "//v1/completions", 404),
        ("POST", "/chat/completions", 404),
        ("POST", "/v1/v1/chat/completions", 404),
        ("POST", "/v1/responses", 404),
        ("POST", "/v1/messages", 404),
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/%00%ff", 404),
        ("GET", "/" + "x" * 8000, 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/healthz", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_what_is_not_there_is_an_openai_shaped_error(
    autojump_clock: MockClock, method: str, path: str, status: int
) -> None:
    async with world() as w, w.client() as client:
        response = await client.request(method, path)
        assert response.status_code == status
        assert error_of(response)["type"] == "invalid_request_error"
        assert ("allow" in response.headers) == (status == 405)


async def test_the_model_is_listed_under_the_served_name(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert listed["data"] == [(await client.get("/v1/models/fake")).json()]
        assert listed["data"][0]["id"] == "fake"
        for model in ("fake", "gpt-4o", "", None):
            assert (await complete(client, model=model)).json()["model"] == "fake"


async def test_the_model_says_how_long_its_context_is(autojump_clock: MockClock) -> None:
    async with world([engine(context=777)]) as w, w.client() as client:
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == 777


async def test_progress_of_a_completion_is_told_before_its_text(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await complete(client, prompt="a b", stream=True, return_progress=True, max_tokens=1)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert events[0]["choices"][0]["text"] == ""
    assert events[-3]["prompt_progress"]["processed"] == events[-3]["prompt_progress"]["total"] == 3


async def test_head_is_get_without_a_body(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await client.head("/readyz")
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://slim/v1/models", 200), ("HTTP://other:1/v1/models?x", 200), ("http://slim", 404), ("http://slim/x", 404)],
)
async def test_a_target_may_be_absolute(autojump_clock: MockClock, target: str, status: int) -> None:
    async with world() as w:
        stream = w.connect()
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: slim\r\n\r\n".encode())
        assert (await read_reply(stream))[0] == status


async def read_reply(stream: trio.abc.Stream) -> tuple[int, dict[str, str], bytes]:
    """One reply with a content-length from a bare connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive_some()
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += await stream.receive_some()
    return int(status.split()[1]), headers, body


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: slim\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 2000\r\n\r\n",
        HEAD + b"Content-Length: 2000\r\nExpect: 100-continue\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"200\r\n" + b"x" * 512 + b"\r\n") * 3,
    ],
)
async def test_a_body_above_the_limit_is_413_without_being_awaited(autojump_clock: MockClock, sent: bytes) -> None:
    async with world(max_body_bytes=1024) as w, w.client() as client:
        stream = w.connect()
        await stream.send_all(sent)
        status, headers, body = await read_reply(stream)
        assert (status, headers["connection"]) == (413, "close")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert trio.current_time() < 1
        assert (await complete(client)).status_code == 200


async def test_a_body_that_is_still_coming_in_when_the_drain_begins_is_refused(autojump_clock: MockClock) -> None:
    async with world() as w:
        stream = w.connect()
        await stream.send_all(HEAD + b'Content-Length: 20\r\n\r\n{"prompt":')
        await wait_all_tasks_blocked()
        await w.app.drain(10.0)
        status, _, body = await read_reply(stream)
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")


async def test_a_client_that_waits_for_leave_to_send_gets_it_only_for_a_body_that_is_wanted(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        stream = w.connect()
        await stream.send_all(HEAD + b"Expect: 100-continue\r\nContent-Length: 15\r\n\r\n")
        assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b'{"prompt": "a"}')
        assert (await read_reply(stream))[0] == 200


async def test_a_body_that_does_not_arrive_is_408_and_holds_no_place(autojump_clock: MockClock) -> None:
    async with world([engine(1)], body_timeout_s=10.0, max_batch=1, max_queue_size=0) as w, w.client() as client:
        stream = w.connect()
        before = trio.current_time()
        await stream.send_all(HEAD + b'Content-Length: 20\r\n\r\n{"prompt":')
        assert (await complete(client, max_tokens=1)).status_code == 200
        status, headers, body = await read_reply(stream)
        assert (status, headers["connection"]) == (408, "close")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert trio.current_time() - before == pytest.approx(10.0, abs=0.1)


async def test_both_lengths_at_once_are_refused_and_the_connection_closed(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        headers = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
        response = await client.post(COMPLETIONS, headers=headers, content=b"0\r\n\r\n")
        assert response.status_code == 400
        assert response.headers["connection"] == "close"


@pytest.mark.parametrize("coding", ["gzip", "identity, br", "nonsense"])
async def test_a_body_in_a_coding_is_refused_and_not_misread(autojump_clock: MockClock, coding: str) -> None:
    async with world() as w, w.client() as client:
        response = await client.post(COMPLETIONS, headers={"Content-Encoding": coding}, content=gzip.compress(b"{}"))
        assert response.status_code == 415
        assert "Content-Encoding" in error_of(response)["message"]
        plain = await client.post(COMPLETIONS, headers={"Content-Encoding": "Identity"}, json={"prompt": "a"})
        assert plain.status_code == 200


async def test_metrics_are_in_prometheus_format_with_all_names(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        await complete(client, max_tokens=5)
        response = await client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        names = {family.name for family in text_string_to_metric_families(response.text)}
        assert names >= {
            "slm_queue_depth", "slm_inflight_requests", "slm_replicas", "slm_rejected", "slm_queue_wait_seconds",
            "slm_time_to_first_token_seconds", "slm_decode_tokens_per_second", "slm_request_duration_seconds",
            "slm_requests", "slm_prompt_tokens", "slm_generated_tokens", "slm_inter_token_latency_seconds",
            "slm_request_prefill_time_seconds", "slm_batch_size", "slm_kv_cache_usage_ratio",
            "slm_cancel_latency_seconds", "slm_tokens_wasted",
        }  # fmt: skip
        assert w.metric("slm_prompt_tokens_total") == 3
        assert w.metric("slm_generated_tokens_total") == 5
        assert w.metric("slm_inter_token_latency_seconds_count") == 4
        assert w.metric("slm_inter_token_latency_seconds_sum") == pytest.approx(4.0)
        assert w.metric("slm_batch_size_bucket", le="1.0") == 5
        assert w.metric("slm_replicas") == 1
        for outcome in ("ok", "timeout", "cancelled", "engine_error", "unanswerable", "shutdown"):
            assert f'slm_requests_total{{outcome="{outcome}"}}' in response.text


async def test_each_request_is_logged_once_without_its_text(autojump_clock: MockClock, caplog: Any) -> None:
    caplog.set_level("INFO")
    async with world() as w, w.client() as client:
        await client.post(COMPLETIONS, json={"prompt": "private words"}, headers={"X-Request-ID": "my-id"})
        await client.get("/nowhere")
    access = [r for r in caplog.records if r.name == "slim.access"]
    assert [(r.fields["status"], r.fields["path"]) for r in access] == [(200, COMPLETIONS), (404, "/nowhere")]
    (generation,) = [r for r in caplog.records if r.name == "slim.generation"]
    assert generation.fields["request_id"] == access[0].fields["request_id"] == "my-id"
    assert generation.fields["completion_tokens"] == 16
    assert {"finish_reason", "prompt_tokens", "queue_wait_ms", "ttft_ms", "duration_ms"} <= generation.fields.keys()
    assert "private" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_end_token_is_scored_though_it_is_no_text(autojump_clock: MockClock, stream: bool) -> None:
    """lm-eval takes the last entry for the generated token, whatever that is."""
    async with world() as w, w.client() as client:
        end = min(w.engines[0].tokenizer.end)
        body = {"prompt": "a b", "max_tokens": 1, "echo": True, "logprobs": 1, "logit_bias": {str(end): 100}}
        response = await client.post(COMPLETIONS, json={**body, "temperature": 0, "stream": stream})
        if stream:
            choices = [json.loads(data)["choices"][0] for data in read_events(response.content)[:-1]]
        else:
            choices = response.json()["choices"]
    entries = [token for choice in choices for token in (choice["logprobs"] or {"tokens": []})["tokens"]]
    assert len(entries) == 3 + 1
    assert "".join(choice["text"] for choice in choices) == "a b"


async def test_many_scores_come_whole_and_streamed_alike() -> None:
    body = {"prompt": "word " * 300, "max_tokens": 3, "echo": True, "logprobs": 2}
    async with world([FakeEngine(context=1000)]) as w, w.client() as client:
        (choice,) = (await complete(client, **body)).json()["choices"]
        response = await complete(client, stream=True, **body)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == choice["text"]
    for name, values in choice["logprobs"].items():
        assert [value for part in parts if part["logprobs"] for value in part["logprobs"][name]] == values
    assert len(choice["logprobs"]["tokens"]) == 603


@pytest.mark.parametrize("stream", [False, True])
async def test_new_control_tokens_take_no_room_in_the_text(autojump_clock: MockClock, stream: bool) -> None:
    async with world() as w, w.client() as client:
        control = w.engines[0].tokenizer.control["<|im_start|>"]
        body = {"prompt": "a b", "max_tokens": 3, "echo": True, "logprobs": 1, "logit_bias": {str(control): 100}}
        response = await client.post(COMPLETIONS, json={**body, "temperature": 0, "stream": stream})
        if stream:
            choices = [json.loads(data)["choices"][0] for data in read_events(response.content)[:-1]]
        else:
            choices = response.json()["choices"]
    scores = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    assert "".join(choice["text"] for choice in choices) == "a b"
    assert [token for part in scores for token in part["tokens"]] == ["a", " ", "b", *["<|im_start|>"] * 3]
    assert [place for part in scores for place in part["text_offset"]] == [0, 1, 2, 3, 3, 3]
