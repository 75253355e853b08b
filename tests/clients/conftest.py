"""One server with the real model for all client tests, and the clients' own environments."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.environments import Environments
from support.server import WITHOUT_NETWORK, Server
from support.smollm2 import smollm2_path


@pytest.fixture(scope="session")
def environments(request: pytest.FixtureRequest) -> Environments:
    return Environments(request.config.cache.mkdir("clients"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    smollm2_path()
    with Server(tmp_path_factory.mktemp("server"), WITHOUT_NETWORK, n_ctx=1024, request_timeout_s=600) as server:
        yield server.wait_ready()
        server.terminate()
        assert server.exit_code() == 0


@pytest.fixture(scope="session")
def run_program(
    environments: Environments, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """The findings of a client's program, run in the environment of the same name."""

    def run(name: str) -> dict[str, Any]:
        program = f"{name.replace('-', '_')}_client.py"
        return environments.get(name).findings(program, server.url, tmp_path_factory.mktemp(name))

    return run
