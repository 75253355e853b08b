"""One server with the real model for all client tests, and the clients' own environments."""

from collections.abc import Iterator

import pytest

from support.environments import Environments
from support.server import WITHOUT_NETWORK, Server


@pytest.fixture(scope="session")
def environments(request: pytest.FixtureRequest) -> Environments:
    return Environments(request.config.cache.mkdir("clients"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    with Server(tmp_path_factory.mktemp("server"), WITHOUT_NETWORK, n_ctx=1024, max_queue_size=64) as server:
        yield server.wait_ready()
        server.terminate()
        assert server.exit_code() == 0
