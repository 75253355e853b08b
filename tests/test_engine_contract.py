"""Every engine keeps the whole contract: the fake one always, llama.cpp where its library is installed."""

from collections.abc import Callable, Iterator

import pytest

from slim.engines.base import Engine
from slim.engines.fake import FakeEngine
from support.engine_contract import CONTRACT, EngineMaker
from support.job_contract import JOB_CONTRACT
from support.smollm2 import smollm2_path


def make_fake(*, slots: int, context: int, prefill_chunk: int) -> Engine:
    return FakeEngine(slots=slots, context=context, prefill_chunk=prefill_chunk)


def make_llama(*, slots: int, context: int, prefill_chunk: int) -> Engine:
    path = smollm2_path()
    from slim.engines.llama_cpp import LlamaEngine, LlamaOptions

    options = LlamaOptions(model_path=path, slots=slots, context=context, threads=1, prefill_chunk=prefill_chunk)
    return LlamaEngine(options)


@pytest.fixture(params=[make_fake, make_llama], ids=["fake", "llama"])
def make(request: pytest.FixtureRequest) -> Iterator[EngineMaker]:
    made: list[Engine] = []

    def make(*, slots: int, context: int, prefill_chunk: int) -> Engine:
        engine: Engine = request.param(slots=slots, context=context, prefill_chunk=prefill_chunk)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("law", CONTRACT + JOB_CONTRACT, ids=lambda law: law.__name__)
def test_the_engine_keeps_the_contract(law: Callable[[EngineMaker], None], make: EngineMaker) -> None:
    law(make)
