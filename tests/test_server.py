"""The process as a user runs it: real sockets, signals, exit codes. The fake engine; the model has its own tests."""

import json
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from openai import APIStatusError, OpenAI

from support.server import WITHOUT_NETWORK, Server, clean_environment, raw_request
from support.sse import read_events

ENDLESS = json.dumps({"prompt": "a", "max_tokens": 1024, "stream": True}).encode()


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slim", *arguments]
    env = clean_environment() | environment
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "/no/such/file.gguf"], "/no/such/file.gguf"),
        (["--engine", "fake", "--port", "x"], "--port"),
        (["--engine", "fake", "--host", "no.such.host.invalid"], "SLM_HOST"),
        (["--engine", "vllm"], "vllm"),
        (["--engine", "mlx"], "mlx"),
    ],
)
def test_a_wrong_setting_is_one_line_and_an_exit_code(tmp_path: Path, arguments: list[str], named: str) -> None:
    done = run(tmp_path, "serve", *arguments)
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert named in line


def test_a_port_in_use_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "serve", "--engine", "fake", "--port", port)
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert port in line
    assert "in use" in line


@pytest.mark.parametrize("missing", ["llama_cpp", "numpy"])
def test_a_missing_extra_is_one_line_that_names_it(tmp_path: Path, missing: str) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    code = (
        "import importlib.util as util, sys; find = util.find_spec;"
        f"util.find_spec = lambda name, *rest: None if name == {missing!r} else find(name, *rest);"
        "from slim.cli import main; sys.exit(main(['serve', '--model', 'model.gguf']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert missing in line
    assert "slim-serve[llama]" in line


def test_info_and_version_print_without_a_model(tmp_path: Path) -> None:
    info = run(tmp_path, "info", SLM_REPLICAS="3")
    assert info.returncode == 0
    assert "SLM_REPLICAS" in info.stdout
    assert "threads per replica" in info.stdout
    assert "none: the model nowhere.gguf does not exist" in run(tmp_path, "info", "--model", "nowhere.gguf").stdout
    assert "cores" in info.stdout
    assert run(tmp_path, "--version").stdout.startswith("slim-serve ")


def test_info_needs_no_heavy_import(tmp_path: Path) -> None:
    code = (
        "import sys; from slim.cli import main; main(['info']);"
        "sys.exit(any(m in sys.modules for m in ('llama_cpp', 'numpy', 'mlx')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True).returncode == 0


def test_the_official_client_works_streaming_and_not(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake") as server:
        client = OpenAI(base_url=server.wait_ready().url + "/v1", api_key="unused")
        whole = client.completions.create(model="any", prompt="Hello", max_tokens=8)
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 8
        chunks = list(
            client.completions.create(
                model="any", prompt="Hello", max_tokens=8, stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(c.choices[0].text for c in chunks[:-1]) == whole.choices[0].text
        assert chunks[-1].usage == whole.usage
        assert [model.id for model in client.models.list()] == ["fake"]
        assert client.models.retrieve("fake").id == "fake"
        with pytest.raises(APIStatusError) as caught:
            client.completions.create(model="any", prompt="Hello", max_tokens=10**6)
        assert caught.value.status_code == 400
        assert caught.value.param == "max_tokens"
        assert caught.value.request_id


def test_a_missed_deadline_is_not_retried_by_the_official_client(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", fake_ttft_s=30, request_timeout_s=0.2) as server:
        client = OpenAI(base_url=server.wait_ready().url + "/v1", api_key="unused")
        with pytest.raises(APIStatusError) as caught:
            client.completions.create(model="any", prompt="Hello")
        assert caught.value.status_code == 504
        assert server.metric('slm_requests_total{outcome="timeout"}') == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_closed_socket_ends_the_generation(tmp_path: Path, stream: bool, how: str) -> None:
    with Server(tmp_path, engine="fake", fake_token_latency_s=0.02) as server:
        port = server.wait_ready().port
        body = json.dumps({"prompt": "a", "max_tokens": 1024, "stream": stream}).encode()
        with raw_request(port, body) as connection:
            server.wait_metric("slm_inflight_requests", 1)
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.wait_metric('slm_requests_total{outcome="cancelled"}', 1)
        server.wait_metric("slm_inflight_requests", 0)
        server.wait_metric("slm_kv_cache_usage_ratio", 0)


def test_a_closed_socket_ends_a_prefill(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", fake_ttft_s=0.02, prefill_chunk=1) as server:
        body = json.dumps({"prompt": "word " * 1000}).encode()
        with raw_request(server.wait_ready().port, body):
            server.wait_metric("slm_inflight_requests", 1)
        server.wait_metric('slm_requests_total{outcome="cancelled"}', 1)
        server.wait_metric("slm_inflight_requests", 0)
        server.wait_metric("slm_kv_cache_usage_ratio", 0)
        assert server.metric("slm_generated_tokens_total") == 0


def test_a_closed_socket_takes_a_queued_request_out_of_the_queue(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", fake_token_latency_s=0.02, max_batch=1, max_queue_size=2) as server:
        port = server.wait_ready().port
        with raw_request(port, ENDLESS) as running:
            running.recv(1)
            with raw_request(port, ENDLESS), raw_request(port, ENDLESS):
                server.wait_metric("slm_queue_depth", 2)
                full = httpx.post(server.url + "/v1/completions", json={"prompt": "a"})
                assert full.status_code == 503
            server.wait_metric("slm_queue_depth", 0)
            server.wait_metric('slm_requests_total{outcome="cancelled"}', 2)
            assert server.metric("slm_inflight_requests") == 1
            assert server.metric("slm_queue_wait_seconds_count") == 0


def test_many_aborted_and_complete_requests_leave_nothing_behind(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", fake_token_latency_s=0.001) as server:
        port = server.wait_ready().port
        for _ in range(50):
            with raw_request(port, ENDLESS) as connection:
                connection.recv(100)
        server.wait_metric('slm_requests_total{outcome="cancelled"}', 50)
        with httpx.Client(base_url=server.url) as client:
            for _ in range(50):
                assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
        server.wait_metric('slm_requests_total{outcome="ok"}', 50)
        for gauge in ("slm_queue_depth", "slm_inflight_requests", "slm_kv_cache_usage_ratio"):
            assert server.metric(gauge) == 0
        descriptors = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert descriptors < 25


def test_sigterm_lets_a_running_request_finish_and_exits_with_0(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", fake_token_latency_s=0.02) as server:
        body = json.dumps({"prompt": "a", "max_tokens": 50, "stream": True}).encode()
        with raw_request(server.wait_ready().port, body) as connection:
            connection.recv(1)
            server.terminate()
            server.wait_for("draining")
            assert httpx.get(server.url + "/readyz").json()["status"] == "draining"
            refused = httpx.post(server.url + "/v1/completions", json={"prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert b"data: [DONE]" in answer
        assert server.exit_code() == 0


def test_sigterm_cuts_what_outlasts_the_drain_with_an_event_and_exits_with_0(tmp_path: Path) -> None:
    with Server(tmp_path, engine="fake", fake_token_latency_s=0.05, drain_s=0.3) as server:
        with httpx.Client(base_url=server.wait_ready().url, timeout=60) as client:
            request = client.build_request("POST", "/v1/completions", content=ENDLESS)
            response = client.send(request, stream=True)
            server.terminate()
            last = read_events(response.read())[-1]
        assert json.loads(last)["error"]["code"] == "draining"
        assert server.exit_code() == 0


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    with (
        Server(tmp_path, engine="fake", fake_token_latency_s=0.05, drain_s=3600) as server,
        raw_request(server.wait_ready().port, ENDLESS) as connection,
    ):
        connection.recv(1)
        server.terminate()
        server.wait_for("draining")
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() != 0


def test_a_reader_that_stops_reading_loses_its_slot_and_cannot_hold_the_exit(tmp_path: Path) -> None:
    settings = {"fake_token_latency_s": 0.0005, "request_timeout_s": 2, "drain_s": 0.5, "write_timeout_s": 3600}
    with Server(tmp_path, engine="fake", max_tokens_limit=10**6, n_ctx=10**6, **settings) as server:
        body = json.dumps({"prompt": "a", "max_tokens": 10**6, "stream": True}).encode()
        with raw_request(server.wait_ready().port, body, receive_buffer=4096):
            server.wait_metric('slm_requests_total{outcome="timeout"}', 1)
            server.wait_metric("slm_inflight_requests", 0)
            assert httpx.get(server.url + "/healthz").status_code == 200
            server.terminate()
            before = time.monotonic()
            assert server.exit_code() == 0
            assert time.monotonic() - before < 30  # it would be an hour; bench/ measures the real time


@pytest.mark.skipif(not hasattr(select, "poll"), reason="the system can't tell whether a pipe is full")
def test_a_reader_of_the_log_that_stops_does_not_stop_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "slim", "serve", "--engine", "fake", "--port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"listening" not in process.stderr.readline():
            pass
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(1000):  # a pipe holds 64 KiB, some 400 lines
                assert client.get("/healthz").status_code == 200
            log = b""
            while b"log lines were lost" not in log:
                assert client.get("/healthz").status_code == 200
                log += process.stderr.read1(1 << 16)
            process.terminate()
            assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_hypercorns_own_launcher_serves_the_same_guarded_app(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bind = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "hypercorn", "-k", "trio", "-b", bind, "slim.asgi:app"]
    with Server(tmp_path, command, engine="fake") as server:
        server.wait_for("Running on")
        with httpx.Client(base_url=f"http://{bind}") as client:
            while client.get("/readyz").status_code != 200:
                pass
            assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
            with socket.create_connection(("127.0.0.1", port)) as odd:  # kills a stock worker
                odd.sendall(
                    b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n\r\n"
                )
                odd.recv(1000)
            assert client.get("/healthz").status_code == 200
        server.terminate()
        server.exit_code()


def test_a_wrong_setting_under_hypercorns_launcher_is_one_readable_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import slim.asgi"]
    with Server(tmp_path, command, engine="fake", replicas="many") as server:
        assert "SLM_REPLICAS" in server.wait_for("slim-serve:")
        assert server.exit_code() != 0


def test_nothing_connects_outward(tmp_path: Path) -> None:
    with Server(tmp_path, WITHOUT_NETWORK, engine="fake") as server:
        url = server.wait_ready().url
        assert httpx.post(url + "/v1/completions", json={"prompt": "a"}).status_code == 200
        server.terminate()
        assert server.exit_code() == 0
