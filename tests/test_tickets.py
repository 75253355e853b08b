"""Requests of several choices, and what a reader is told besides text: progress, places in the queue, echo, scores."""

import gc
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock, wait_all_tasks_blocked

from slim.answer import PromptProgress
from slim.engines.fake import FakeEngine, JobFault
from slim.engines.fake_vocab import FakeTokenizer
from slim.errors import EngineFailed, InvalidRequest, Overloaded, RequestCancelled, SlimError
from slim.scheduler import Ticket
from slim.scheduler.job import Job
from slim.types import (
    ChatPrompt,
    Dry,
    FinishReason,
    Generation,
    Grammar,
    Mirostat,
    Outcome,
    Sampling,
    Segment,
    TokenScore,
    Usage,
    Xtc,
)
from support.in_process import World, world


@define
class Choice:
    """What came of one choice."""

    pieces: list[str] = field(factory=list)
    scores: list[TokenScore] = field(factory=list)
    progress: list[PromptProgress] = field(factory=list)
    end: FinishReason | SlimError | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


async def read(ticket: Ticket) -> dict[int, Choice]:
    choices: dict[int, Choice] = defaultdict(Choice)
    while sum(choice.end is not None for choice in choices.values()) < ticket.size:
        for update in await ticket.receive():
            choice = choices[update.index]
            assert choice.end is None, "news of a choice that has ended"
            choice.pieces += update.pieces
            for scores in update.scores:
                choice.scores += scores
            if update.progress is not None:
                choice.progress.append(update.progress)
            choice.end = update.reason or update.error
    return choices


def ask(prompt: str = "a prompt", max_tokens: int = 3, **more: object) -> Generation:
    return Generation((Segment(prompt, True),), max_tokens, **more)  # type: ignore[arg-type]


async def run(w: World, requests: Sequence[Generation]) -> tuple[dict[int, Choice], Usage]:
    with w.scheduler.submit(requests, "r") as ticket:
        return await read(ticket), ticket.usage


async def test_each_choice_of_each_prompt_has_its_index(autojump_clock: MockClock) -> None:
    async with world(max_batch=8) as w:
        alone = [(await run(w, [ask(text)]))[0][0].text for text in ("one", "two words")]
        choices, usage = await run(w, [ask("one", choices=2), ask("two words", choices=2)])
    assert [choices[index].text for index in range(4)] == [alone[0], alone[0], alone[1], alone[1]]
    assert {choice.end for choice in choices.values()} == {FinishReason.LENGTH}
    assert usage.completion_tokens == 12


async def test_a_prompt_counts_once_however_many_choices_it_has(autojump_clock: MockClock) -> None:
    async with world(max_batch=8) as w:
        _, usage = await run(w, [ask("one", choices=3), ask("two words", choices=3)])
    assert (usage.prompt_tokens, usage.cached_tokens) == (1 + 3, 0)


async def test_choices_of_a_seeded_request_differ_and_come_again(autojump_clock: MockClock) -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    async with world(max_batch=8) as w:
        first, _ = await run(w, [ask(max_tokens=8, sampling=sampling, choices=3)])
        again, _ = await run(w, [ask(max_tokens=8, sampling=sampling, choices=3)])
        single, _ = await run(w, [ask(max_tokens=8, sampling=sampling)])
    assert len({choice.text for choice in first.values()}) == 3
    assert [first[i].text for i in range(3)] == [again[i].text for i in range(3)]
    assert first[0].text == single[0].text


async def test_all_choices_are_admitted_or_none(autojump_clock: MockClock) -> None:
    async with world([FakeEngine(slots=2, step_seconds=lambda *_: 1.0)], max_batch=2, max_queue_size=2) as w:
        with w.scheduler.submit([ask(max_tokens=50), ask(max_tokens=50)], "r"):
            with pytest.raises(Overloaded):
                w.scheduler.submit([ask(choices=3)], "r")
            assert w.scheduler.statistics().queued + w.scheduler.statistics().running == 2
            with w.scheduler.submit([ask(choices=2)], "r") as ticket:
                assert ticket.size == 2


async def test_leaving_a_ticket_ends_all_its_jobs(autojump_clock: MockClock) -> None:
    engine = FakeEngine(slots=2, step_seconds=lambda *_: 1.0)
    async with world([engine], max_batch=2) as w:
        with w.scheduler.submit([ask(max_tokens=500, choices=4)], "r"):
            await trio.sleep(5)
            assert w.scheduler.statistics().running == 2
        await wait_all_tasks_blocked()
        await trio.sleep(2)
        statistics = w.scheduler.statistics()
        assert (statistics.running, statistics.queued, engine.kv_used) == (0, 0, 0)
        assert w.metric("slm_requests_total", outcome="cancelled") == 4


async def test_a_choice_that_fails_says_so_and_the_others_go_on(autojump_clock: MockClock) -> None:
    engine = FakeEngine(slots=1, step_seconds=lambda *_: 1.0, script=[b"x", JobFault("broken")])
    async with world([engine], max_batch=1) as w:
        with w.scheduler.submit([ask(), ask()], "r") as ticket:
            choices = await read(ticket)
    assert [type(choices[index].end) for index in range(2)] == [EngineFailed, EngineFailed]


async def test_what_only_the_model_can_refuse_is_the_clients_fault(autojump_clock: MockClock) -> None:
    async with world() as w:
        size = len(w.engines[0].tokenizer.pieces)
        bias = Sampling(logit_bias=((size, 1.0),))
        for request, param in (
            (ask(sampling=bias), "logit_bias"),
            (ask(stop_token_ids=frozenset({size})), "stop_token_ids"),
            (Generation((1, size), 3), "prompt"),
            (ask(sampling=bias, choices=2), "logit_bias"),
        ):
            choices, _ = await run(w, [request])
            for choice in choices.values():
                assert isinstance(choice.end, InvalidRequest)
                assert (choice.end.param, choice.text) == (param, "")
                assert str(size) in str(choice.end)
        assert [w.metric("slm_requests_total", outcome=outcome) for outcome in Outcome] == [0] * len(Outcome)


async def test_a_waiting_request_is_told_its_place_as_it_moves_up(autojump_clock: MockClock) -> None:
    engine = FakeEngine(slots=1, prefill_chunk=2, step_seconds=lambda *_: 1.0)
    async with world([engine], max_batch=1) as w, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(run, w, [ask(max_tokens=5)])
            await wait_all_tasks_blocked()
        choices, _ = await run(w, [ask("five tokens in all", progress=True)])
    waiting = [one.queue_position for one in choices[0].progress if one.queue_position is not None]
    assert waiting == [2, 1, 0]
    reading = [(one.done, one.total) for one in choices[0].progress if one.queue_position is None]
    assert reading == [(2, 7), (4, 7), (6, 7), (7, 7)]
    seconds = [one.seconds for one in choices[0].progress]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 10


async def test_nobody_is_told_of_progress_who_did_not_ask(autojump_clock: MockClock) -> None:
    async with world(max_batch=1, max_queue_size=4) as w, trio.open_nursery() as nursery:
        nursery.start_soon(run, w, [ask(max_tokens=5)])
        await wait_all_tasks_blocked()
        choices, _ = await run(w, [ask()])
    assert choices[0].progress == []


async def test_an_echoed_prompt_comes_first_and_only_with_the_answer(autojump_clock: MockClock) -> None:
    async with world() as w:
        plain, _ = await run(w, [ask("one two")])
        choices, _ = await run(w, [ask("one two", echo=True)])
        assert choices[0].pieces[0] == "one two"
        assert choices[0].text == "one two" + plain[0].text


async def test_without_new_tokens_the_echo_is_the_answer(autojump_clock: MockClock) -> None:
    async with world() as w:
        choices, usage = await run(w, [ask("one two", max_tokens=0, echo=True, logprobs=1)])
    assert (choices[0].text, choices[0].end) == ("one two", FinishReason.LENGTH)
    assert [score.logprob is None for score in choices[0].scores] == [True, False, False]
    assert usage == Usage(3, 0)


async def test_the_scores_of_an_echoed_prompt_come_with_every_choice(autojump_clock: MockClock) -> None:
    async with world(max_batch=1, max_queue_size=8) as w:
        choices, _ = await run(w, [ask("one two", max_tokens=2, echo=True, logprobs=2, choices=3)])
    assert [len(choice.scores) for choice in choices.values()] == [5, 5, 5]
    assert choices[0].scores == choices[1].scores == choices[2].scores


async def test_scores_of_a_replica_that_has_none_of_the_prompt(autojump_clock: MockClock) -> None:
    """Choices that run on two replicas at once: each reads the prompt itself, and waits for its own scores."""
    engines = [FakeEngine(slots=1, prefill_chunk=chunk, step_seconds=lambda *_: 1.0) for chunk in (8, 1)]
    async with world(engines, max_batch=1) as w:
        choices, _ = await run(w, [ask("a b c d", max_tokens=1, echo=True, logprobs=0, choices=2)])
    assert [len(choices[index].scores) for index in range(2)] == [8, 8]


async def test_a_chat_is_read_through_the_template(autojump_clock: MockClock) -> None:
    async with world() as w:
        prompt = ChatPrompt(({"role": "user", "content": "hello there"},))
        with w.scheduler.submit([Generation(prompt, 2)], "r") as ticket:
            choices = await read(ticket)
            prepared = ticket.prepared(0)
            assert prepared is not None
            assert prepared.output is not None
            assert ticket.usage.prompt_tokens == len(prepared.tokens) > 3
    assert choices[0].end is FinishReason.LENGTH


async def test_timings_say_where_the_time_went(autojump_clock: MockClock) -> None:
    engine = FakeEngine(slots=1, prefill_chunk=2, step_seconds=lambda *_: 1.0)
    async with world([engine], max_batch=1) as w, trio.open_nursery() as nursery:
        nursery.start_soon(run, w, [ask(max_tokens=5)])
        await wait_all_tasks_blocked()
        with w.scheduler.submit([ask("five tokens in all", max_tokens=4)], "r") as ticket:
            await read(ticket)
            timings = ticket.timings(0)
    assert timings.queue == pytest.approx(6, abs=1.1)
    assert (timings.prompt, timings.decode) == (pytest.approx(4), pytest.approx(3))
    assert (timings.prompt_tokens, timings.cached_tokens, timings.new_tokens) == (7, 0, 4)


async def test_a_prompt_takes_its_time_even_if_no_token_follows(autojump_clock: MockClock) -> None:
    async with world([FakeEngine(prefill_chunk=2, step_seconds=lambda *_: 1.0)]) as w:
        with w.scheduler.submit([ask("five tokens in all", max_tokens=0, echo=True)], "r") as ticket:
            await read(ticket)
            assert ticket.timings(0).prompt == pytest.approx(4)


async def test_a_nudge_wakes_the_reader_with_nothing(autojump_clock: MockClock) -> None:
    async with world() as w, trio.open_nursery() as nursery:
        with w.scheduler.submit([ask(max_tokens=50)], "r") as ticket:
            (started,) = await ticket.receive()
            assert started.pieces
            nursery.start_soon(trio.sleep, 0)
            ticket.nudge()
            assert await ticket.receive() == []


async def test_a_request_that_was_cancelled_says_so_to_every_choice(autojump_clock: MockClock) -> None:
    async with world() as w:
        with w.scheduler.submit([ask(max_tokens=50, choices=2)], "r") as ticket:
            ticket.cancel()
            choices = await read(ticket)
        assert {type(choice.end) for choice in choices.values()} == {RequestCancelled}
        assert evolve(choices[0], end=None) == Choice()


async def test_the_score_of_the_end_token_comes_with_the_end(autojump_clock: MockClock) -> None:
    async with world() as w:
        end = min(w.engines[0].tokenizer.end)
        forced = Sampling(temperature=0, logit_bias=((end, 100.0),))
        with w.scheduler.submit([ask(max_tokens=5, logprobs=1, sampling=forced)], "r") as ticket:
            (update,) = await ticket.receive()
    assert (update.reason, update.pieces, update.scores) == (FinishReason.STOP, [], [])
    assert update.end_score is not None


async def test_a_score_comes_with_its_text_and_not_later(autojump_clock: MockClock) -> None:
    async with world() as w:
        with w.scheduler.submit([ask(max_tokens=3, logprobs=1)], "r") as ticket:
            (update,) = await ticket.receive()
    assert (len(update.pieces), [len(scores) for scores in update.scores]) == (1, [1])


async def test_a_place_in_the_queue_is_told_once_the_prompt_is_known(autojump_clock: MockClock) -> None:
    async with world(max_batch=1) as w:
        with w.scheduler.submit([ask(max_tokens=3)], "first"):
            await trio.sleep(0.5)
            w.preparing.seconds = 5.0
            choices, _ = await run(w, [ask(max_tokens=1, progress=True)])
    assert {progress.total for progress in choices[0].progress} == {3}


async def test_each_choice_says_what_it_did_not_compute(autojump_clock: MockClock) -> None:
    async with world() as w:
        with w.scheduler.submit([ask("a b c", max_tokens=2, choices=2)], "r") as ticket:
            await read(ticket)
            timings = [ticket.timings(index) for index in range(2)]
    assert [(one.prompt_tokens, one.cached_tokens) for one in timings] == [(5, 0), (1, 4)]


async def test_nothing_is_kept_of_an_ended_request(autojump_clock: MockClock) -> None:
    async with world() as w:
        with w.scheduler.submit([ask("a b", max_tokens=2, choices=2, progress=True, echo=True)], "r") as ticket:
            await read(ticket)
        await trio.sleep(5)
        del ticket
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Job)]


END = min(FakeTokenizer.end)


@pytest.mark.parametrize(
    ("more", "made"),
    [({}, 0), ({"min_tokens": 2}, 2), ({"ignore_eos": True}, 5), ({"stop_token_ids": frozenset({300})}, 0)],
    ids=["ends", "min_tokens", "ignore_eos", "stop_token_ids"],
)
async def test_when_an_answer_may_end_is_the_requests_to_say(
    autojump_clock: MockClock, more: dict[str, Any], made: int
) -> None:
    wanted = 300 if "stop_token_ids" in more else END
    forced = Sampling(temperature=0, logit_bias=((wanted, 100.0),))
    async with world() as w:
        choices, usage = await run(w, [ask(max_tokens=5, sampling=forced, **more)])
    assert usage.completion_tokens == made
    assert choices[0].end is (FinishReason.LENGTH if made == 5 else FinishReason.STOP)


async def test_each_choice_walks_through_the_grammar_by_itself(autojump_clock: MockClock) -> None:
    async with world() as w:
        choices, _ = await run(w, [ask(max_tokens=9, grammar=Grammar("regex", "abc", "regex"), choices=2)])
    assert [choices[index].text for index in range(2)] == ["abc", "abc"]


async def test_a_prompt_is_scored_only_for_its_echo(autojump_clock: MockClock) -> None:
    async with world() as w:
        began = trio.current_time()
        await run(w, [ask("a " * 60, max_tokens=1, logprobs=1)])
        assert trio.current_time() - began == pytest.approx(1)  # scored, it takes a step for each 63 tokens


@pytest.mark.parametrize("sampling", [{"dry": Dry(1.0)}, {"xtc": Xtc(1.0, 0.1)}, {"mirostat": Mirostat(2)}], ids=str)
async def test_a_sampler_that_the_engine_lacks_is_refused(autojump_clock: MockClock, sampling: dict[str, Any]) -> None:
    async with world() as w:
        choices, _ = await run(w, [ask(sampling=Sampling(**sampling))])
    assert isinstance(choices[0].end, InvalidRequest)
