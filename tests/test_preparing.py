"""The two lanes to the preparing threads, on real threads."""

import threading

import pytest
import trio

from slim.engines.fake import FakeEngine
from slim.preparation import Model
from slim.scheduler.preparing import SLOW_THREADS, Preparing
from slim.types import ChatPrompt, Generation, Grammar, Prompt, Segment

pytestmark = pytest.mark.trio
LONG: Prompt = (Segment("word " * 100, parse_special=True),)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def model() -> Model:
    engine = FakeEngine()
    return Model(engine.load(), engine.tokenizer)


def chat(*tools: dict[str, object]) -> ChatPrompt:
    return ChatPrompt(messages=({"role": "user", "content": "word " * 100},), tools=tools)


def ask(prompt: Prompt, grammar: Grammar | None = None) -> Generation:
    return Generation(prompt=prompt, max_tokens=4, grammar=grammar)


@pytest.mark.parametrize("plain", [ask(LONG), ask(chat())], ids=["text", "chat"])
@pytest.mark.parametrize(
    "slow", [ask(LONG, Grammar("regex", "a+", "regex")), ask(chat(TOOL))], ids=["grammar", "tools"]
)
async def test_a_plain_prompt_waits_behind_no_compilation(model: Model, plain: Generation, slow: Generation) -> None:
    preparing, gate, done = Preparing(), threading.Event(), list[str]()

    async def prepare(name: str, request: Generation) -> None:
        await preparing.prepare(model, request)
        done.append(name)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(SLOW_THREADS):
                nursery.start_soon(preparing.run, gate.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(prepare, "slow", slow)
            await trio.testing.wait_all_tasks_blocked()
            assert preparing.waiting == 1
            await prepare("plain", plain)
            assert done == ["plain"]
            gate.set()
    assert done == ["plain", "slow"]


async def test_nothing_reads_the_vocabulary_once_finish_has_returned() -> None:
    preparing, gate = Preparing(), threading.Event()
    running, returned = threading.Event(), list[bool]()

    def work() -> None:
        running.set()
        gate.wait()
        returned.append(True)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(preparing.run, work)
            await trio.to_thread.run_sync(running.wait)
            nursery.cancel_scope.cancel()  # the wait ends, the thread goes on
        async with trio.open_nursery() as nursery:
            nursery.start_soon(preparing.finish)
            await trio.testing.wait_all_tasks_blocked()
            assert not returned
            gate.set()
    assert returned
