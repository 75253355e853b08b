"""Keys and browsers: who is let in, what a web page can't do, and what a page that may read gets to see."""

import json
import signal
import socket
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from openai import AuthenticationError, OpenAI
from trio.testing import MockClock

from slim.compose import build_access
from slim.config import SETTINGS, Settings, load_settings
from slim.errors import ConfigError
from slim.keys import KeyRing
from slim.web.http import Request
from slim.wire.errors import HttpError
from support.in_process import world
from support.server import Server
from support.sse import read_events

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "a", "max_tokens": 2}
SECRET = "sk-Q7~/+=very.secret"
BEARER = {"Authorization": f"Bearer {SECRET}"}
OPEN = ["/healthz", "/readyz"]
PAGE = "https://app.example"


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def line(name: str, secret: str) -> str:
    return f"{name}:{digest(secret)}\n"


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, which has OpenAI's four keys on every path."""
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    assert SECRET not in response.text


# Keys


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", COMPLETIONS),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("POST", "/v1/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/fake"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
        ("GET", "/"),
        ("GET", "/v1/%00%ff"),
        ("GET", "//healthz"),
        ("GET", "/healthz/"),
        ("OPTIONS", COMPLETIONS),
        ("DELETE", "/v1/models"),
        ("GET", f"/v1/models?api_key={SECRET}"),
        ("GET", f"/v1/models?key={SECRET}"),
    ],
)
async def test_with_a_key_everything_but_the_probes_needs_it(autojump_clock: MockClock, method: str, path: str) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        assert_refused(await client.request(method, path))
        with_key = await client.request(method, path, headers=BEARER)
        assert with_key.status_code in (200, 400, 404, 405)
        assert not with_key.is_redirect


@pytest.mark.parametrize("path", OPEN)
async def test_the_probes_need_no_key(autojump_clock: MockClock, path: str) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.head(path)).status_code == 200
        assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status_code == 200


async def test_metrics_can_be_opened(autojump_clock: MockClock) -> None:
    async with world(api_key=SECRET, metrics_open=True) as w, w.client() as client:
        assert (await client.get("/metrics")).status_code == 200
        assert_refused(await client.get("/v1/models"))


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", f"Bearer {SECRET}")],
        [("authorization", f"bearer {SECRET}")],
        [("Authorization", f"BEARER   {SECRET}")],
        [("X-Api-Key", SECRET)],
        [("X-Api-Key", SECRET), ("Authorization", "Bearer stale")],
        [("X-Api-Key", "stale"), ("Authorization", f"Bearer {SECRET}")],
        [("X-Api-Key", SECRET), ("Authorization", "Basic dXNlcjpwYXNz")],
    ],
)
async def test_a_key_is_taken_from_either_header(autojump_clock: MockClock, headers: list[tuple[str, str]]) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        response = await client.post(COMPLETIONS, json=BODY, headers=headers)
        assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", SECRET)],
        [("Authorization", f"Basic {SECRET}")],
        [("Authorization", f"Bearer {SECRET}x")],
        [("Authorization", f"Bearer {SECRET[:-1]}")],
        [("Authorization", f"Bearer {SECRET.upper()}")],
        [("Authorization", f"Bearer {SECRET} {SECRET}")],
        [("Authorization", f"Bearer {digest(SECRET)}")],
        [("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
        [("Authorization", b"Bearer \xc3\xa9\xff")],
        [("Authorization", b"\xff\xfe")],
        [("X-Api-Key", "")],
        [("X-Api-Key", b"\xe9")],
        [("X-Api-Key", f"Bearer {SECRET}")],
        [("Authorization", "Bearer " + "x" * 12000)],
        [("Cookie", f"api_key={SECRET}")],
    ],
)
async def test_what_is_not_the_key_is_401_and_never_500(
    autojump_clock: MockClock, headers: list[tuple[str, Any]]
) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        assert_refused(await client.post(COMPLETIONS, json=BODY, headers=headers))
        assert (await client.get("/v1/models", headers=BEARER)).status_code == 200


async def test_a_request_without_a_key_is_told_how_to_send_one(autojump_clock: MockClock) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        for headers in ({}, {"X-Api-Key": ""}, {"Authorization": "Bearer"}):
            assert "'Authorization: Bearer KEY'" in (await client.get("/v1/models", headers=headers)).text
        assert "not valid" in (await client.get("/v1/models", headers={"X-Api-Key": "wrong"})).text


async def test_a_key_of_64_kilobytes_is_refused_and_hurts_nobody(autojump_clock: MockClock) -> None:
    """Above 16 KiB of headers the connection refuses by itself, without a body."""
    async with world(api_key=SECRET) as w, w.client() as client:
        response = await client.get("/v1/models", headers={"Authorization": "Bearer " + "x" * 65536})
        assert 400 <= response.status_code < 500
        assert (await client.get("/v1/models", headers=BEARER)).status_code == 200


async def test_a_wrong_key_is_refused_before_the_body_is_read(autojump_clock: MockClock) -> None:
    async with world(api_key=SECRET) as w:
        stream = w.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: slim\r\nContent-Length: 20\r\n"
        await stream.send_all(head + b"Expect: 100-continue\r\n\r\n")
        answer = bytes(await stream.receive_some())
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert trio.current_time() < 1


async def test_without_keys_any_key_is_ignored(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        response = await client.post(COMPLETIONS, json=BODY, headers={"Authorization": b"Bearer \xff"})
        assert response.status_code == 200


def request_with(*headers: tuple[bytes, bytes], method: str = "POST", server: Any = ("127.0.0.1", 80)) -> Request:
    async def receive() -> Any:
        raise AssertionError("the body is not to be read")

    lines = [(b"host", b"localhost"), *headers]
    return Request({"method": method, "path": COMPLETIONS, "headers": lines, "server": server}, receive)


def test_a_request_gets_the_name_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line("alice", "a-secret") + line("bob.2_x-y", "b-secret"))
    access = build_access(Settings(api_key=SECRET, api_keys_file=str(file)))
    owners = {}
    for secret in (SECRET, "a-secret", "b-secret"):
        request = request_with((b"x-api-key", secret.encode()))
        access.admit(request)
        owners[secret] = request.tenant
    assert owners == {SECRET: "default", "a-secret": "alice", "b-secret": "bob.2_x-y"}
    request = request_with((b"authorization", b"Bearer a-secret"), (b"x-api-key", b"b-secret"))
    access.admit(request)
    assert request.tenant == "alice"


def test_without_keys_a_request_has_no_name() -> None:
    request = request_with((b"authorization", b"Bearer something"))
    build_access(Settings()).admit(request)
    assert request.tenant == ""


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
async def test_a_key_is_never_logged_or_counted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    caplog.set_level(level)
    async with world(api_key=SECRET) as w, w.client() as client:
        for headers in (BEARER, {"X-Api-Key": SECRET}, {"X-Api-Key": SECRET + "x"}):
            await client.post(COMPLETIONS, json=BODY, headers=headers)
            await client.get(f"/nowhere?api_key={SECRET}", headers=headers)
        exposition = (await client.get("/metrics", headers=BEARER)).text
    assert len([r for r in caplog.records if r.name == "slim.access"]) == 7
    ours = [record for record in caplog.records if not record.name.startswith("http")]  # the client logs too
    everything = str([(record.getMessage(), vars(record)) for record in ours])
    for secret in (SECRET, digest(SECRET)):
        assert secret not in everything
        assert secret not in exposition


# Settings


def test_the_key_is_masked_wherever_a_setting_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from slim.cli import main

    monkeypatch.setenv("SLM_API_KEY", SECRET)
    assert main(["info", "--engine", "fake"]) == 0
    shown = capsys.readouterr().out
    assert SECRET not in shown
    assert any(line.split() == ["SLM_API_KEY", "(set)"] for line in shown.splitlines())
    settings = load_settings(environ={"SLM_API_KEY": SECRET})
    assert settings.api_key == SECRET
    assert SECRET not in repr(settings) + repr(build_access(settings))


@pytest.mark.parametrize("text", ["two words", "Schlüssel", "a\x7fb"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={"SLM_API_KEY": text})
    assert str(caught.value) == "SLM_API_KEY: the value is not visible ASCII characters without spaces"


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("*", ("*",)),
        ("HTTPS://App.Example", ("https://app.example",)),
        ("https://a.example:443,http://a.example:80", ("https://a.example", "http://a.example")),
        ("http://a.example:443, https://a.example:80", ("http://a.example:443", "https://a.example:80")),
        ("chrome-extension://abc", ("chrome-extension://abc",)),
        ("http://[::1]:3000,http://localhost:3000", ("http://[::1]:3000", "http://localhost:3000")),
    ],
)
def test_origins_are_read_as_browsers_write_them(text: str, origins: tuple[str, ...]) -> None:
    assert load_settings(environ={"SLM_CORS_ORIGINS": text}).cors_origins == origins


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SLM_CORS_ORIGINS", "app.example"),
        ("SLM_CORS_ORIGINS", "https://app.example/"),
        ("SLM_CORS_ORIGINS", "https://app.example/page"),
        ("SLM_CORS_ORIGINS", "https://*.example"),
        ("SLM_CORS_ORIGINS", "https://a b"),
        ("SLM_CORS_ORIGINS", "https://a.example,,https://b.example"),
        ("SLM_CORS_ORIGINS", "https://user@a.example"),
        ("SLM_CORS_ORIGINS", "https://bücher.example"),
        ("SLM_CORS_ORIGINS", "null"),
        ("SLM_CORS_ORIGINS", "https://"),
        ("SLM_ALLOWED_HOSTS", "slim:8000"),
        ("SLM_ALLOWED_HOSTS", "http://slim"),
        ("SLM_ALLOWED_HOSTS", "*.example"),
        ("SLM_ALLOWED_HOSTS", "slim,"),
        ("SLM_ALLOWED_HOSTS", "[::1"),
    ],
)
def test_a_wrong_list_is_an_error_that_names_it(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}: .* separated by commas"):
        load_settings(environ={variable: text})


@pytest.mark.parametrize("name", ["allowed_hosts", "cors_origins"])
def test_a_list_is_shown_as_it_is_written(name: str) -> None:
    (setting,) = [setting for setting in SETTINGS if setting.name == name]
    assert setting.show(("a.example", "*")) == "a.example,*"


# The file of keys


def test_a_file_of_keys_has_comments_blank_lines_and_either_case(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    text = f"# team\r\n\r\n  {line('alice', 'a')}   # indented\n\t\nbob:{digest('b').upper()}"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    keys = KeyRing(None, file)
    assert (keys.owner(b"a"), keys.owner(b"b"), keys.owner(b"c")) == ("alice", "bob", None)


@pytest.mark.parametrize(
    "wrong",
    [
        "alice",
        f"alice {digest('x')}",
        f":{digest('x')}",
        f"al ice:{digest('x')}",
        f"älice:{digest('x')}",
        f"{'a' * 65}:{digest('x')}",
        f"alice:{digest('x')}  -",
        f"alice:{digest('x')[:-1]}",
        f"alice:{digest('x')}0",
        f"alice:{'g' * 64}",
        "alice:a-secret-in-clear",
        f"alice:{digest('')}",
        f"first:{digest('x')}",
        f"alice:{digest('first')}",
        f"default:{digest('x')}",
        f"alice:{digest(SECRET)}",
    ],
)
def test_a_bad_line_is_an_error_that_names_file_and_line_and_not_the_line(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "team.keys"
    file.write_text(f"# comment\n{line('first', 'first')}\n{wrong}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        KeyRing(SECRET, file)
    message = str(caught.value)
    assert message.startswith(f"SLM_API_KEYS_FILE: {file}, line 4: ")
    assert wrong not in message
    assert "a-secret-in-clear" not in message


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary", "."):
        with pytest.raises(ConfigError, match=f"^SLM_API_KEYS_FILE: {tmp_path / name} "):
            KeyRing(None, tmp_path / name)


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# all left\n")
    keys = KeyRing(None, file)
    assert keys.required
    assert keys.owner(b"") is None


def test_a_bad_file_leaves_the_old_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line("alice", "a"))
    keys = KeyRing(SECRET, file)
    file.write_text(line("bob", "b") + "nonsense\n")
    with pytest.raises(ConfigError, match="line 2"):
        keys.reload()
    assert (keys.owner(b"a"), keys.owner(b"b")) == ("alice", None)
    file.write_text(line("bob", "b"))
    assert keys.reload() == 2
    assert (keys.owner(b"a"), keys.owner(b"b"), keys.owner(SECRET.encode())) == (None, "bob", "default")


# Web pages and a server without keys


def ask_host(sent: str, server: Any = ("127.0.0.1", 8000), **settings: Any) -> None:
    """Ask a server with these settings under this Host. Raises HttpError 403."""
    request = request_with((b"host", sent.encode("latin-1")), method="GET", server=server)
    build_access(Settings(**settings)).admit(request)


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("localhost", {}),
        ("localhost:8000", {}),
        ("LocalHost.:8000", {}),
        ("app.localhost:1", {}),
        ("127.0.0.1:8000", {}),
        ("127.8.9.1", {}),
        ("[::1]", {}),
        ("[::1]:8000", {}),
        ("[0:0::1]:8000", {}),
        ("192.168.1.5:8000", {"server": ("192.168.1.5", 8000)}),
        ("192.168.1.5:8000", {"server": ("::ffff:192.168.1.5", 8000)}),
        ("[fd00::5]:8000", {"server": ("fd00::5", 8000)}),
        ("[fe80::5]:8000", {"server": ("fe80::5%eth0", 8000)}),
        ("Box.lan:8000", {"host": "box.LAN"}),
        ("0.0.0.0:8000", {"host": "0.0.0.0"}),
        ("slim", {"allowed_hosts": ("api.example", "slim")}),
        ("API.example:443", {"allowed_hosts": ("api.example", "slim")}),
        ("[FD00::7]", {"allowed_hosts": ("fd00::7",)}),
        ("[fd00:0::7]", {"allowed_hosts": ("fd00::7",)}),
        ("10.0.0.9", {"allowed_hosts": ("10.0.0.9",)}),
        ("evil.example", {"allowed_hosts": ("*",)}),
        ("", {"allowed_hosts": ("*",)}),
    ],
)
def test_a_host_of_ours_is_served(host: str, settings: dict[str, Any]) -> None:
    ask_host(host, **settings)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "evil-localhost",
        "localhost@evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1:8000:80",
        "[::1]evil.example",
        "[::1",
        "::1",
        "192.168.1.6",
        "[fd00::6]",
        "2130706433",
        "",
        "localhost, evil.example",
        "\xff",
    ],
)
@pytest.mark.parametrize("server", [("192.168.1.5", 8000), ("/run/slim.sock", None), None])
def test_a_host_that_is_not_ours_is_refused(host: str, server: Any) -> None:
    """A page whose name was pointed at this machine (DNS rebinding) can't read what it asks for."""
    with pytest.raises(HttpError) as caught:
        ask_host(host, server, allowed_hosts=("slim",))
    assert caught.value.status == 403


async def test_a_foreign_host_is_403_on_all_paths_but_the_probes(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        headers = {"Host": "evil.example"}
        for method, path in [("POST", COMPLETIONS), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nowhere")]:
            response = await client.request(method, path, headers=headers)
            assert response.status_code == 403
            assert error_of(response)["code"] is None
            assert "SLM_ALLOWED_HOSTS" in response.text
        for path in OPEN:
            assert (await client.get(path, headers=headers)).status_code == 200
    async with world(metrics_open=True) as w, w.client() as client:
        assert (await client.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json;charset=UTF-8",
        "Application/JSON ; charset=utf-8",
        "application/vnd.api+json",
        None,
    ],
)
async def test_json_is_taken_however_it_is_declared(autojump_clock: MockClock, kind: str | None) -> None:
    async with world() as w, w.client() as client:
        headers = {} if kind is None else {"Content-Type": kind}
        response = await client.post(COMPLETIONS, content=json.dumps(BODY), headers=headers)
        assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "text/plain; application/json"},
        {"Content-Type": "text/plain;charset=utf-16"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=+json"},
        {"Content-Type": "text/x+json"},
        {"Content-Type": "application/jsonp"},
        {"Content-Type": ""},
        {"Content-Type": b"\xff"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_what_a_page_can_post_without_leave_is_415(autojump_clock: MockClock, headers: dict[str, Any]) -> None:
    async with world() as w, w.client() as client:
        response = await client.post(COMPLETIONS, content=json.dumps(BODY), headers=headers)
        assert response.status_code == 415
        assert "application/json" in error_of(response)["message"]
        assert w.metric("slm_prompt_tokens_total") == 0


async def test_with_keys_neither_host_nor_content_type_matters(autojump_clock: MockClock) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        headers = {**BEARER, "Host": "slim.svc.cluster.local", "Content-Type": "text/plain", "Origin": PAGE}
        response = await client.post(COMPLETIONS, content=json.dumps(BODY), headers=headers)
        assert response.status_code == 200


# Pages that may read


def cors_of(response: httpx.Response) -> dict[str, str]:
    return {
        name: value for name, value in response.headers.items() if name.startswith("access-control") or name == "vary"
    }


ASK = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/models", "/nowhere"])
@pytest.mark.parametrize("keys", [{}, {"api_key": SECRET}])
async def test_a_preflight_is_answered_without_a_key(
    autojump_clock: MockClock, path: str, keys: dict[str, Any]
) -> None:
    async with world(cors_origins=("https://other.example", PAGE), **keys) as w, w.client() as client:
        asked = "authorization,content-type,x-stainless-retry-count"
        response = await client.options(path, headers={**ASK, "Access-Control-Request-Headers": asked})
        assert (response.status_code, response.content) == (204, b"")
        assert "content-length" not in response.headers
        assert "content-type" not in response.headers
        cors = cors_of(response)
        assert cors["access-control-allow-origin"] == PAGE
        assert "POST" in cors["access-control-allow-methods"]
        assert cors["access-control-allow-headers"] == asked
        assert int(cors["access-control-max-age"]) > 0
        assert cors["vary"] == "origin"
        assert "access-control-allow-credentials" not in cors


async def test_a_connection_lives_on_after_a_preflight(autojump_clock: MockClock) -> None:
    async with world(cors_origins=(PAGE,)) as w:
        stream = w.connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in ASK.items())
        await stream.send_all(f"OPTIONS /v1/models HTTP/1.1\r\nHost: slim\r\n{lines}\r\n".encode())
        assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 204 ")
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: slim\r\n\r\n")
        assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("asked", [b"x\xff", b"a: b", b"x" * 5000, b""])
async def test_odd_header_names_are_not_echoed(autojump_clock: MockClock, asked: bytes) -> None:
    async with world(cors_origins=("*",)) as w, w.client() as client:
        response = await client.options(COMPLETIONS, headers={**ASK, "Access-Control-Request-Headers": asked})
        assert response.status_code == 204
        assert "access-control-allow-headers" not in response.headers


@pytest.mark.parametrize(
    ("status", "path", "request_"),
    [
        (200, COMPLETIONS, {"json": BODY}),
        (200, COMPLETIONS, {"json": {**BODY, "stream": True}}),
        (200, "/healthz", {}),
        (400, COMPLETIONS, {"json": {}}),
        (
            400,
            COMPLETIONS,
            {"headers": {"Content-Length": "2", "Transfer-Encoding": "chunked"}, "content": b"0\r\n\r\n"},
        ),
        (401, COMPLETIONS, {"headers": {"Authorization": "Bearer wrong"}}),
        (404, "/nowhere", {}),
        (405, "/v1/completions", {"method": "GET"}),
        (413, COMPLETIONS, {"content": b"x" * 2000}),
        (500, COMPLETIONS, {"json": BODY}),
    ],
)
async def test_every_answer_to_an_allowed_page_can_be_read_by_it(
    autojump_clock: MockClock, monkeypatch: Any, status: int, path: str, request_: dict[str, Any]
) -> None:
    async with world(cors_origins=(PAGE,), api_key=SECRET, max_body_bytes=1024) as w, w.client() as client:
        if status == 500:
            monkeypatch.setattr(w.scheduler, "submit", None)
        method = request_.pop("method", "POST" if path == COMPLETIONS else "GET")
        headers = {**BEARER, "Origin": PAGE, **request_.pop("headers", {})}
        response = await client.request(method, path, headers=headers, **request_)
        assert response.status_code == status
        assert cors_of(response) == {
            "access-control-allow-origin": PAGE,
            "access-control-expose-headers": "x-request-id, retry-after, retry-after-ms, x-should-retry",
            "vary": "origin",
        }
        if "stream" in request_.get("json", {}):
            assert read_events(response.content)[-1] == "[DONE]"
        elif status != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_refusals_of_a_server_without_keys_can_be_read_too(autojump_clock: MockClock) -> None:
    async with world(cors_origins=(PAGE,)) as w, w.client() as client:
        foreign = await client.get("/v1/models", headers={"Origin": PAGE, "Host": "evil.example"})
        plain = await client.post(COMPLETIONS, content=b"{}", headers={"Origin": PAGE, "Content-Type": "text/plain"})
        assert (foreign.status_code, plain.status_code) == (403, 415)
        assert foreign.headers["access-control-allow-origin"] == PAGE
        assert plain.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://app.example", "https://app.example:8443", ""]
)
async def test_another_page_is_served_but_can_read_nothing(autojump_clock: MockClock, origin: str) -> None:
    async with world(cors_origins=(PAGE,)) as w, w.client() as client:
        response = await client.post(COMPLETIONS, json=BODY, headers={"Origin": origin})
        assert response.status_code == 200
        assert cors_of(response) == {"vary": "origin"}
        preflight = await client.options(COMPLETIONS, headers={**ASK, "Origin": origin})
        assert preflight.status_code == 204
        assert cors_of(preflight) == {"vary": "origin"}


async def test_any_page_may_read_where_the_setting_says_so(autojump_clock: MockClock) -> None:
    async with world(cors_origins=("*",)) as w, w.client() as client:
        for origin in (PAGE, "null"):
            response = await client.post(COMPLETIONS, json=BODY, headers={"Origin": origin})
            assert response.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("name", list(ASK))
async def test_what_asks_for_no_leave_is_no_preflight(autojump_clock: MockClock, name: str) -> None:
    async with world(cors_origins=("*",)) as w, w.client() as client:
        assert (await client.options(COMPLETIONS, headers={name: ASK[name]})).status_code == 405


async def test_without_the_setting_nothing_is_said_to_pages(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as client:
        assert cors_of(await client.post(COMPLETIONS, json=BODY, headers={"Origin": PAGE})) == {}
        preflight = await client.options(COMPLETIONS, headers=ASK)
        assert preflight.status_code == 405
        assert cors_of(preflight) == {}


async def test_an_unsafe_request_id_is_not_echoed_with_a_refusal(autojump_clock: MockClock) -> None:
    async with world(api_key=SECRET) as w, w.client() as client:
        for sent in (b"\x1b[31m", b"a\tb", b"\x80\xff", b"x" * 10000):
            response = await client.get("/v1/models", headers={"X-Request-ID": sent})
            assert_refused(response)
            assert response.headers["x-request-id"].isalnum()
            assert len(response.headers["x-request-id"]) == 16


# The process


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no such signal")
def test_a_hangup_reads_the_file_again_and_requests_that_run_go_on(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line("alice", "alice-secret"))
    settings = {"fake_token_latency_s": 0.1, "drain_s": 0, "metrics_open": True}
    with Server(tmp_path, engine="fake", api_keys_file=file, **settings) as server:
        url = server.wait_ready().url

        def status(secret: str) -> int:
            return httpx.get(url + "/v1/models", headers={"X-Api-Key": secret}).status_code

        body = {"prompt": "a", "max_tokens": 1000, "stream": True}
        headers = {"X-Api-Key": "alice-secret"}
        with httpx.stream("POST", url + COMPLETIONS, json=body, headers=headers, timeout=60) as running:
            assert running.status_code == 200
            file.write_text("alice-secret in clear\n")
            server.process.send_signal(signal.SIGHUP)
            assert "line 1" in server.wait_for("the API keys stay as they were")
            assert (status("alice-secret"), status("bob-secret")) == (200, 401)
            file.write_text(line("bob", "bob-secret"))
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("API keys read again: 1")
            assert (status("alice-secret"), status("bob-secret")) == (401, 200)
            server.wait_metric("slm_inflight_requests", 1)
            server.terminate()
            assert json.loads(read_events(running.read())[-1])["error"]["code"] == "draining"
        assert server.exit_code() == 0
        assert not any("alice-secret" in line for line in server.lines)


def test_the_official_client_needs_the_key(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", api_key=SECRET) as server:
        url = server.wait_ready().url + "/v1"
        right, wrong = OpenAI(base_url=url, api_key=SECRET), OpenAI(base_url=url, api_key="wrong")
        assert right.completions.create(model="any", prompt="a", max_tokens=2).choices[0].text
        with pytest.raises(AuthenticationError) as caught:
            wrong.completions.create(model="any", prompt="a")
        assert caught.value.code == "invalid_api_key"
        assert caught.value.request_id


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "api_key": SECRET}, False),
        ({"host": "127.0.0.2"}, False),
    ],
)
def test_a_server_open_to_others_without_keys_warns(tmp_path: Path, settings: dict[str, Any], warned: bool) -> None:
    with Server(tmp_path, engine="fake", **settings) as server:
        server.wait_for("listening on")
        assert any("SLM_API_KEY" in line for line in server.lines) is warned


@pytest.mark.parametrize("command", [None, [sys.executable, "-c", "import slim.asgi"]])
def test_a_bad_file_of_keys_ends_the_start_with_one_line(tmp_path: Path, command: list[str] | None) -> None:
    file = tmp_path / "keys"
    file.write_text("alice:secret\n")
    with Server(tmp_path, command, engine="fake", api_keys_file=file) as server:
        assert f"{file}, line 1" in server.wait_for("slim-serve:")
        assert server.exit_code() != 0
        assert [line for line in server.lines if line.startswith("Traceback")] == []


def test_keys_and_pages_are_the_same_under_hypercorns_own_launcher(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bind = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "hypercorn", "-k", "trio", "-b", bind, "slim.asgi:app"]
    with Server(tmp_path, command, engine="fake", api_key=SECRET, cors_origins=PAGE) as server:
        server.wait_for("Running on")
        with httpx.Client(base_url=f"http://{bind}") as client:
            assert_refused(client.get("/v1/models"))
            assert client.get("/v1/models", headers=BEARER).status_code == 200
            assert client.options(COMPLETIONS, headers=ASK).headers["access-control-allow-origin"] == PAGE
        server.terminate()
        server.exit_code()
