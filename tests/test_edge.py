"""The guard round each connection, on real sockets on loopback where sockets are the subject."""

import base64
import socket
import struct
import subprocess
import sys
from functools import partial

import h2.config
import h2.connection
import h2.events
import hpack
import hypercorn.protocol
import hypercorn.trio.run
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from slim.web import edge
from support.raw_http import (
    ask,
    connect,
    get,
    open_lockstep,
    read_body,
    read_to_end,
    reset,
    serve_stream,
    start_server,
)

PATIENCE = 10
"""Seconds after which a test that hangs fails."""

START = {"type": "http.response.start", "status": 200, "headers": []}


def body(data, *, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


async def answer_lifespan(receive, send):
    for _ in range(2):
        await send({"type": (await receive())["type"] + ".complete"})


def app_of(handle):
    """An ASGI app that answers the lifespan and leaves requests, HTTP only, to `handle`."""

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        else:
            assert scope["type"] == "http"
            await handle(scope, receive, send)

    return app


async def say_ok(scope, receive, send):
    if scope["path"] == "/fails":
        raise ValueError("the app is broken")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send(body(b"ok"))


async def wait_for_disconnect(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


OK_APP = app_of(say_ok)
CLOSING = get("/healthz", "Connection: close")


@pytest.fixture(autouse=True)
def _hypercorn_as_before(monkeypatch):
    monkeypatch.setattr(hypercorn.trio.run, "TCPServer", hypercorn.trio.run.TCPServer)
    monkeypatch.setattr(hypercorn.protocol, "H11Protocol", hypercorn.protocol.H11Protocol)
    monkeypatch.setattr(edge.GuardedServer, "limits", edge.GuardedServer.limits)


# Inputs that end a hypercorn worker that has no guard


def h2_frame(kind, flags, stream_id, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def h2_request(flags, **pseudo):
    headers = [(f":{name}".encode(), value) for name, value in pseudo.items()]
    return h2_frame(1, flags, 1, hpack.Encoder().encode(headers))


def h2_get(method=b"GET", path=b"/healthz"):
    return h2_request(5, method=method, path=path, scheme=b"http", authority=b"x")


def h2c_upgrade(settings):
    encoded = base64.urlsafe_b64encode(settings).rstrip(b"=").decode()
    return get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", f"HTTP2-Settings: {encoded}")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(4, 0, 0)
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
FATAL = {
    "websocket and a stray byte": get("/healthz", *WEBSOCKET) + b"x",
    "websocket with a body": get("/healthz", *WEBSOCKET, "Content-Length: 5") + b"hello",
    "h2c, settings cut short": h2c_upgrade(b"\x00\x01"),
    "h2c, impossible window": h2c_upgrade(struct.pack(">HI", 4, 0xFFFFFFFF)),
    "h2, path not ASCII": PREFACE + h2_get(path="/é".encode()),
    "h2, method not ASCII": PREFACE + h2_get(method="GÉT".encode()),
    "h2, plain CONNECT": PREFACE + h2_request(5, method=b"CONNECT", authority=b"x"),
    "app fails, next request is waiting": get("/fails") + get("/healthz"),
}


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "h2c"])
@pytest.mark.parametrize("name", FATAL)
async def test_an_input_that_kills_hypercorn_ends_one_connection_only(nursery, name, http2):
    port = await start_server(nursery, OK_APP, http2_cleartext=http2)
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(FATAL[name])
            await client.send_eof()
            await read_to_end(client)
        assert (await ask(port, CLOSING)).endswith(b"ok")


async def test_http2_body_that_goes_on_after_the_answer_ends_one_connection_only(nursery):
    port = await start_server(nursery, OK_APP, http2_cleartext=True)
    head = h2_request(4, method=b"POST", path=b"/healthz", scheme=b"http", authority=b"x")
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(PREFACE + head)
            got = b""
            while not got.endswith(h2_frame(0, 1, 1)):
                got += await client.receive_some()
            await wait_all_tasks_blocked()
            await client.send_all(h2_frame(0, 0, 1, b"abc"))
            await client.send_eof()
            await read_to_end(client)
        assert (await ask(port, CLOSING)).endswith(b"ok")


async def test_the_log_names_the_error_class_and_nothing_of_the_client(nursery, caplog):
    port = await start_server(nursery, OK_APP, http2_cleartext=True)
    with trio.fail_after(PATIENCE):
        await ask(port, PREFACE + h2_get(path="/sécret".encode()))
        assert (await ask(port, CLOSING)).endswith(b"ok")
    assert [record.getMessage() for record in caplog.records] == ["connection closed after UnicodeDecodeError"]
    assert caplog.records[0].exc_info is None


def test_hypercorns_own_launcher_is_guarded_by_an_app_that_installs_at_import(tmp_path):
    source = "from slim.web import edge\nfrom test_edge import OK_APP as app\nedge.install(edge.EdgeLimits())\n"
    (tmp_path / "launched.py").write_text(source)
    with edge.open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "hypercorn", "-w", "0", "-k", "trio", "-b", f"fd://{listener.fileno()}"]
        environment = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
        server = subprocess.Popen(
            [*command, "launched:app"], pass_fds=[listener.fileno()], env=environment, stderr=subprocess.DEVNULL
        )
    try:
        answers = [exchange(port, request) for request in (FATAL["websocket and a stray byte"], CLOSING)]
    finally:
        server.kill()
        server.wait()
    assert answers[1].endswith(b"ok")


def exchange(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read()


# Protocols


@pytest.mark.parametrize("upgrade", [WEBSOCKET, ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")])
async def test_an_upgrade_is_ignored_and_the_request_answered(nursery, upgrade):
    port = await start_server(nursery, OK_APP)
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(get("/healthz", *upgrade))
            assert await read_body(client) == b"ok"
            await client.send_all(get("/healthz"))
            assert await read_body(client) == b"ok"


async def test_a_client_that_asked_for_an_upgrade_and_leaves_is_noticed(nursery):
    arrived, left = trio.Event(), trio.Event()

    async def handle(scope, receive, send):
        arrived.set()
        await wait_for_disconnect(receive)
        left.set()

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(get("/", "Connection: Upgrade", "Upgrade: h2c"))
            await arrived.wait()
        await left.wait()


async def test_http2_without_tls_is_refused_by_default(nursery):
    port = await start_server(nursery, OK_APP)
    with trio.fail_after(PATIENCE):
        assert (await ask(port, PREFACE + h2_get())).startswith(b"HTTP/1.1 505 ")


async def test_http2_without_tls_works_when_allowed(nursery):
    port = await start_server(nursery, OK_APP, http2_cleartext=True)
    connection = h2.connection.H2Connection(h2.config.H2Configuration())
    connection.initiate_connection()
    connection.send_headers(
        1, [(":method", "GET"), (":path", "/healthz"), (":scheme", "http"), (":authority", "x")], end_stream=True
    )
    got = b""
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(connection.data_to_send())
            while got != b"ok":
                events = connection.receive_data(await client.receive_some())
                got += b"".join(event.data for event in events if isinstance(event, h2.events.DataReceived))


async def read_h2_status(client):
    """The status in the first HEADERS frame of an HTTP/2 server."""
    got = b""
    while True:
        piece = await client.receive_some()
        assert piece, "the connection was closed without an answer"
        got += piece
        while len(got) >= 9 and len(got) >= 9 + (length := int.from_bytes(got[:3], "big")):
            if got[3] == 1:
                return dict(hpack.Decoder().decode(got[9 : 9 + length], raw=True))[b":status"]
            got = got[9 + length :]


async def test_a_websocket_over_http2_is_refused_and_never_reaches_the_app(nursery):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])
        await answer_lifespan(receive, send)

    port = await start_server(nursery, app, http2_cleartext=True)
    pseudo = [(b":method", b"CONNECT"), (b":protocol", b"websocket"), (b":path", b"/"), (b":scheme", b"http")]
    headers = [*pseudo, (b":authority", b"x"), (b"sec-websocket-version", b"13")]
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(PREFACE + h2_frame(1, 4, 1, hpack.Encoder().encode(headers)))
            assert await read_h2_status(client) == b"403"
    assert seen == ["lifespan"]


# Writes


@pytest.mark.parametrize("request_bytes", [get("/"), get("/") + get("/waits")], ids=["alone", "pipelined"])
async def test_a_client_that_stops_reading_is_cut_off_and_the_app_told(nursery, request_bytes):
    told = trio.Event()

    async def handle(scope, receive, send):
        await send(START)
        await send(body(bytes(2**24), more=True))
        await wait_for_disconnect(receive)
        told.set()

    port = await start_server(nursery, app_of(handle), write_timeout_s=0.1)
    with trio.fail_after(PATIENCE):
        async with await connect(port, receive_buffer=4096) as client:
            await client.send_all(request_bytes)
            await told.wait()
            await read_to_end(client)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has the option")
async def test_the_app_is_told_when_nobody_takes_what_it_wrote_long_ago(nursery):
    told = trio.Event()

    async def handle(scope, receive, send):
        await send(START)
        await send(body(bytes(12_000), more=True))
        await wait_for_disconnect(receive)
        told.set()

    port = await start_server(nursery, app_of(handle), write_timeout_s=0.1)
    with trio.fail_after(PATIENCE):
        async with await connect(port, receive_buffer=4096) as client:
            await client.send_all(get("/"))
            await told.wait()


async def test_a_slow_reader_gets_a_long_answer_whole(nursery, autojump_clock):
    data = bytes(2**20)

    async def handle(scope, receive, send):
        await send(START)
        await send(body(data))

    edge.install(edge.EdgeLimits(write_timeout_s=10))
    client = open_lockstep(nursery, app_of(handle))
    got = 0
    with trio.fail_after(1000):
        await client.send_all(get("/", "Connection: close"))
        while piece := await client.receive_some():
            got += len(piece)
            await trio.sleep(9)
    assert got > len(data)


async def test_a_write_waits_exactly_as_long_as_allowed(nursery, autojump_clock):
    blocked = []

    async def handle(scope, receive, send):
        await send(START)
        start = trio.current_time()
        await send(body(b"nobody reads this", more=True))
        blocked.append(trio.current_time() - start)

    edge.install(edge.EdgeLimits(write_timeout_s=10))
    client = open_lockstep(nursery, app_of(handle))
    with trio.fail_after(1000):
        await client.send_all(get("/"))
        await trio.sleep(100)
    assert blocked == [10]


async def test_a_deadline_does_not_cut_a_chunk_in_half(nursery):
    cancelled = trio.Event()

    async def handle(scope, receive, send):
        await send(START)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(send, body(b"a" * 2**22, more=True))
                await wait_all_tasks_blocked()
                scope.cancel()
                cancelled.set()
        await send(body(b"end"))

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        async with await connect(port, receive_buffer=65536) as client:
            await client.send_all(get("/"))
            await cancelled.wait()
            assert await read_body(client) == b"a" * 2**22 + b"end"


async def test_chunks_sent_at_the_same_time_never_mix(nursery):
    started = trio.Event()

    async def handle(scope, receive, send):
        await send(START)
        async with trio.open_nursery() as inner:
            for letter in (b"a", b"b", b"c"):
                inner.start_soon(send, body(letter * 2**22, more=True))
            await wait_all_tasks_blocked()
            started.set()
        await send(body(b""))

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(get("/"))
            await started.wait()
            got = await read_body(client)
    assert sorted(got[i : i + 2**22] for i in range(0, len(got), 2**22)) == [x * 2**22 for x in (b"a", b"b", b"c")]


async def test_an_app_that_only_sends_lets_others_run(nursery):
    turns = []

    async def count():
        while True:
            turns.append(None)
            await trio.lowlevel.checkpoint()

    async def handle(scope, receive, send):
        await send(START)
        async with trio.open_nursery() as inner:
            inner.start_soon(count)
            await trio.lowlevel.checkpoint()
            turns.clear()
            for _ in range(1000):
                await send(body(b"x", more=True))
            inner.cancel_scope.cancel()
        await send(body(b""))

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(get("/"))
            await read_body(client)
    assert len(turns) >= 20


async def test_an_app_that_only_sends_can_be_cancelled(nursery):
    sent = []

    async def handle(scope, receive, send):
        await send(START)
        with trio.CancelScope() as scope:
            scope.cancel()
            for _ in range(1000):
                await send(body(b"x", more=True))
                sent.append(None)
        await send(body(b""))

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(get("/"))
            await read_body(client)
    assert len(sent) < 100


async def test_a_short_answer_is_one_write_head_and_body_together(nursery):
    edge.install(edge.EdgeLimits())
    client = open_lockstep(nursery, OK_APP)
    with trio.fail_after(PATIENCE):
        await client.send_all(get("/healthz"))
        answer = await client.receive_some()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\nok")


async def test_an_answer_without_a_body_still_has_its_head(nursery):
    async def handle(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send(body(b""))

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        assert (await ask(port, get("/", "Connection: close"))).startswith(b"HTTP/1.1 204 ")


class Encrypting(trio.abc.Stream):
    """Looks like a TLS stream over a socket; its cipher flips the bits."""

    def __init__(self, transport):
        self.transport_stream = transport

    async def do_handshake(self):
        await trio.lowlevel.checkpoint()

    def selected_alpn_protocol(self):
        return "http/1.1"

    async def send_all(self, data):
        await self.transport_stream.send_all(flip(data))

    async def wait_send_all_might_not_block(self):
        raise NotImplementedError

    async def receive_some(self, max_bytes=None):
        return flip(await self.transport_stream.receive_some(max_bytes))

    async def aclose(self):
        await self.transport_stream.aclose()


def flip(data):
    return bytes(byte ^ 255 for byte in data)


async def test_an_encrypted_connection_never_carries_plain_text(nursery):
    async def accept(stream):
        serve_stream(nursery, OK_APP, Encrypting(stream))
        await trio.sleep_forever()

    edge.install(edge.EdgeLimits())
    listeners = await nursery.start(partial(trio.serve_tcp, accept, 0, host="127.0.0.1"))
    with trio.fail_after(PATIENCE):
        got = await ask(listeners[0].socket.getsockname()[1], flip(CLOSING))
    assert flip(got).startswith(b"HTTP/1.1 200")
    assert flip(got).endswith(b"ok")


# The ends of connections


async def test_a_client_that_half_closes_gets_its_answer_and_the_app_is_told(nursery):
    async def handle(scope, receive, send):
        await wait_for_disconnect(receive)
        await send(START)
        await send(body(b"for the patient"))

    port = await start_server(nursery, app_of(handle))
    with trio.fail_after(PATIENCE):
        async with await connect(port) as client:
            await client.send_all(get("/"))
            await client.send_eof()
            assert await read_body(client) == b"for the patient"


@pytest.mark.parametrize("leave", [lambda stream: stream.socket.close(), reset], ids=["close", "reset"])
@pytest.mark.parametrize(
    "more",
    [[b"\r\n"], [get("/next")], [get("/next"), get("/third"), b"\r\n"]],
    ids=["line", "request", "more and more"],
)
async def test_a_client_that_sent_more_than_its_request_and_leaves_is_noticed(nursery, more, leave):
    started, gone = trio.Event(), trio.Event()

    async def handle(scope, receive, send):
        assert scope["path"] == "/"
        await receive()
        started.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    stream = await connect(await start_server(nursery, app_of(handle)))
    await stream.send_all(get("/") + more[0])
    with trio.fail_after(PATIENCE):
        await started.wait()
        for further in more[1:]:
            await stream.send_all(further)
        leave(stream)
        await gone.wait()


async def test_requests_that_came_early_are_answered_in_their_turn(nursery):
    gate = trio.Event()

    async def handle(scope, receive, send):
        if scope["path"] == "/a":
            await gate.wait()
        await send(START | {"headers": [(b"content-length", b"2")]})
        await send(body(scope["path"].encode()))

    with trio.fail_after(PATIENCE):
        stream = await connect(await start_server(nursery, app_of(handle)))
        for name in "abc":
            await stream.send_all(get(f"/{name}"))
            await wait_all_tasks_blocked()
        gate.set()
        answers = b""
        while not answers.endswith(b"/c"):
            answers += await stream.receive_some()
        await stream.aclose()
    assert [part[:2] for part in answers.split(b"\r\n\r\n")[1:]] == [b"/a", b"/b", b"/c"]


async def test_a_connection_above_the_cap_is_closed_and_a_place_is_free_again_after_one_ends(nursery):
    port = await start_server(nursery, OK_APP, max_connections=2)
    with trio.fail_after(PATIENCE):
        first, second = await connect(port), await connect(port)
        for client in (first, second):
            await client.send_all(get("/healthz"))
            await read_body(client)
        assert await ask(port, CLOSING) == b""
        await first.aclose()
        while not await ask(port, CLOSING):
            pass
        await second.aclose()


def test_the_cap_fits_into_the_limit_of_open_files(tmp_path):
    program = (
        "import resource; from slim.web import edge; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300));"
        "edge.install(edge.EdgeLimits(max_connections=150)); low = edge.GuardedServer.limits.max_connections;"
        "edge.install(edge.EdgeLimits(max_connections=1000)); high = edge.GuardedServer.limits.max_connections;"
        "print(low, high, resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["150", "236", "300"]
    assert "only 236 connections" in done.stderr


async def test_clients_that_come_and_go_hold_no_place(nursery):
    port = await start_server(nursery, OK_APP, max_connections=100)
    with trio.fail_after(PATIENCE):
        for _ in range(250):
            reset(await connect(port))
            await (await connect(port)).aclose()
        while not await ask(port, CLOSING):
            pass


async def test_a_client_that_leaves_during_its_answer_holds_no_place_and_sends_do_not_raise(nursery):
    arrived, answered = trio.Event(), trio.Event()

    async def handle(scope, receive, send):
        if scope["path"] == "/":
            arrived.set()
            await wait_for_disconnect(receive)
            await say_ok(scope, receive, send)
            answered.set()
        else:
            await say_ok(scope, receive, send)

    port = await start_server(nursery, app_of(handle), max_connections=1)
    with trio.fail_after(PATIENCE):
        client = await connect(port)
        await client.send_all(get("/"))
        await arrived.wait()
        reset(client)
        await answered.wait()
        while not await ask(port, CLOSING):
            pass


async def test_a_server_stops_in_time_with_a_stalled_reader_after_connections_are_closed(nursery):
    stalled, stop = trio.Event(), trio.Event()

    async def handle(scope, receive, send):
        await send(START)
        async with trio.open_nursery() as inner:
            inner.start_soon(send, body(bytes(2**24), more=True))
            await wait_all_tasks_blocked()
            stalled.set()
            await wait_for_disconnect(receive)

    edge.install(edge.EdgeLimits(write_timeout_s=600))
    listener = edge.open_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as servers:
            servers.start_soon(partial(edge.serve, app_of(handle), listener, shutdown_trigger=stop.wait))
            async with await connect(port, receive_buffer=4096) as client:
                await client.send_all(get("/"))
                await stalled.wait()
                edge.close_connections()
                stop.set()
                await read_to_end(client)


# Listening and the lifespan


async def test_startup_and_shutdown_reach_the_app_and_nothing_is_printed(capfd):
    seen = []
    stop = trio.Event()

    async def app(scope, receive, send):
        for _ in range(2):
            message = await receive()
            seen.append(message["type"])
            await send({"type": message["type"] + ".complete"})

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as servers:
            listener = edge.open_listener("127.0.0.1", 0)
            urls = await servers.start(partial(edge.serve, app, listener, shutdown_trigger=stop.wait))
            assert urls[0].startswith("http://127.0.0.1:")
            stop.set()
    assert seen == ["lifespan.startup", "lifespan.shutdown"]
    assert capfd.readouterr() == ("", "")


async def test_a_failed_startup_is_one_error_with_the_apps_text():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no model here"})

    with pytest.raises(RuntimeError, match="no model here"):
        await edge.serve(app, edge.open_listener("127.0.0.1", 0), shutdown_trigger=trio.sleep_forever)


def test_a_port_in_use_is_a_plain_os_error():
    with edge.open_listener("127.0.0.1", 0) as listener, pytest.raises(OSError, match="in use"):
        edge.open_listener("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize(("host", "port"), [("not a host", 0), ("a..b", 0), ("127.0.0.1", 70_000)])
def test_an_impossible_address_is_a_plain_os_error(host, port):
    with pytest.raises(OSError, match=r"\w"):
        edge.open_listener(host, port)


def test_listening_works_on_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with edge.open_listener("::1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        pass


def test_a_name_with_both_kinds_of_address_gets_ipv4(monkeypatch):
    found = [(family, socket.SOCK_STREAM, 6, "", ()) for family in (socket.AF_INET6, socket.AF_INET)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    with edge.open_listener("localhost", 0) as listener:
        assert listener.family == socket.AF_INET


async def test_serving_works_where_the_kernel_has_no_user_timeout(nursery, monkeypatch):
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    port = await start_server(nursery, OK_APP)
    with trio.fail_after(PATIENCE):
        assert (await ask(port, CLOSING)).endswith(b"ok")
