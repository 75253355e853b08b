"""What every engine must do with the wishes of a job: limits, scores, constraints, shared prompts. Knows no backend.

Laws like those of `engine_contract`, which says what a maker is.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from slim.engines.base import Engine
from slim.engines.prefixes import WORTH, aligned, common
from slim.types import EngineJob, Failed, Finished, FinishReason, Progress, PromptScores, Sampling, Segment, Token

from .constraints import Faulty, OneOf
from .engine_contract import GREEDY, OTHER, PROMPT, EngineMaker, Output, finish, job, loaded, run, run_one, step


def the_vocabulary_says_what_its_tokens_are(make: EngineMaker) -> None:
    tokenizer = loaded(make).tokenizer
    assert len(tokenizer.pieces) > max(tokenizer.control.values())
    assert all(tokenizer.pieces[token] == b"" for token in tokenizer.control.values())
    assert tokenizer.end
    assert max(tokenizer.end) < len(tokenizer.pieces)
    for text in (tokenizer.bos, tokenizer.eos):
        assert text == "" or text in tokenizer.control


def control_tokens_are_parsed_by_name_and_only_where_that_is_asked(make: EngineMaker) -> None:
    tokenizer = loaded(make).tokenizer
    for name, token in tokenizer.control.items():
        assert tokenizer.encode([Segment(name, True)], leading=False) == (token,)
        assert token not in tokenizer.encode([Segment(name, False)], leading=False)


def without_a_leading_token_an_empty_text_has_none(make: EngineMaker) -> None:
    encode = loaded(make).tokenizer.encode
    assert encode([], leading=False) == encode([Segment("", True)], leading=False) == ()


def a_text_that_begins_with_the_leading_token_gets_no_second(make: EngineMaker) -> None:
    tokenizer = loaded(make).tokenizer
    for text in ("hello", ""):
        whole = tokenizer.encode([Segment(text, True)])
        begun = tokenizer.encode([Segment(tokenizer.bos + text, True)])
        bos = tokenizer.control.get(tokenizer.bos, -1)
        assert begun.count(bos) == (1 if tokenizer.bos else 0)
        assert whole.count(bos) <= 1


def no_new_tokens_means_the_prompt_alone(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=8)
    output = run_one(engine, job(engine, "a", max_tokens=0))
    assert (output.ids, output.reason) == ([], FinishReason.LENGTH)
    assert output.progress[-1] == len(job(engine, "a").tokens)
    assert engine.kv_used == 0


def end_tokens_come_only_after_min_tokens(make: EngineMaker) -> None:
    engine = loaded(make)
    end = min(engine.tokenizer.end)
    letters = some_ids(engine, 3)
    early, late = OneOf((), letters, end=[end]), OneOf((), letters, end=[end])
    ended = run_one(engine, job(engine, "a", sampling=prefer(end), constraint=early))
    assert ended.reason == FinishReason.STOP
    waited = run_one(engine, job(engine, "a", sampling=prefer(end), constraint=late, min_tokens=3))
    assert (waited.ids, waited.reason) == (letters, FinishReason.STOP)


def prefer(*tokens: int) -> Sampling:
    """Greedy, and one of these tokens wherever it may come."""
    return Sampling(0.0, logit_bias=tuple((token, 100.0) for token in tokens))


def some_ids(engine: Engine, count: int) -> list[int]:
    """Ordinary tokens: those of the first letters, which every vocabulary has."""
    return [engine.tokenizer.encode([Segment(chr(97 + n), False)], leading=False)[0] for n in range(count)]


def ignore_eos_goes_on_to_max_tokens(make: EngineMaker) -> None:
    engine = loaded(make)
    assert run_one(engine, job(engine, "a", sampling=prefer(*engine.tokenizer.end))).reason is not None
    endless = run_one(engine, job(engine, "a", sampling=prefer(*engine.tokenizer.end), ignore_eos=True))
    assert (len(endless.ids), endless.reason) == (6, FinishReason.LENGTH)


def stop_token_ids_end_a_job_and_are_not_told(make: EngineMaker) -> None:
    engine = loaded(make)
    free = run_one(engine, job(engine, "a")).ids
    place = next(place for place in range(1, 6) if free[place] not in free[:place])
    stopped = run_one(engine, job(engine, "a", stop_token_ids=frozenset({free[place]})))
    assert (stopped.ids, stopped.reason) == (free[:place], FinishReason.STOP)
    waited = run_one(engine, job(engine, "a", stop_token_ids=frozenset({free[0]}), min_tokens=2))
    assert free[0] not in waited.ids[:2]
    assert len(waited.ids) >= 2


def a_bias_chooses_and_bans(make: EngineMaker) -> None:
    engine = loaded(make)
    letter = some_ids(engine, 1)[0]
    assert run_one(engine, job(engine, "a", max_tokens=3, sampling=prefer(letter))).ids == [letter] * 3
    first = run_one(engine, job(engine, "a")).ids[0]
    banned = run_one(engine, job(engine, "a", sampling=Sampling(0.0, logit_bias=((first, -100.0),))))
    assert first not in banned.ids


def tokens_outside_the_vocabulary_are_refused(make: EngineMaker) -> None:
    engine = loaded(make, slots=1)
    beyond = len(engine.tokenizer.pieces)
    for bad in (-1, beyond):
        for one in (
            job(engine, "a", sampling=Sampling(logit_bias=((0, 1.0), (bad, 1.0)))),
            job(engine, "a", stop_token_ids=frozenset({bad})),
            EngineJob("a", (0, bad), 1),
        ):
            with pytest.raises(ValueError, match="vocabulary"):
                engine.add(one)
    assert run_one(engine, job(engine, "a")).reason is not None


def shown_control_tokens_have_their_name_as_text(make: EngineMaker) -> None:
    engine = loaded(make)
    tokenizer = engine.tokenizer
    name, token = next((name, token) for name, token in tokenizer.control.items() if token not in tokenizer.end)
    plain = run_one(engine, job(engine, "a", constraint=OneOf([token])))
    assert (plain.ids, plain.data) == ([token], b"")
    shown = run_one(engine, job(engine, "a", constraint=OneOf([token]), shown=frozenset({token})))
    assert (shown.ids, shown.data) == ([token], name.encode())


def scores_come_only_where_they_are_asked_for(make: EngineMaker) -> None:
    engine = loaded(make)
    outputs = run(engine, [job(engine, "plain"), job(engine, "scored", logprobs=3), job(engine, "bare", logprobs=0)])
    assert outputs["plain"].scores == []
    assert len(outputs["scored"].scores) == len(outputs["bare"].scores) == 6
    assert outputs["plain"].ids == outputs["scored"].ids == outputs["bare"].ids
    assert [one.top for one in outputs["bare"].scores] == [()] * 6
    assert [len(one.top) for one in outputs["scored"].scores] == [3] * 6
    assert [one.logprob for one in outputs["scored"].scores] == [one.logprob for one in outputs["bare"].scores]


def scores_are_real(make: EngineMaker) -> None:
    engine = loaded(make)
    jobs = [job(engine, "greedy", logprobs=5), job(engine, "seeded", sampling=Sampling(1.0, seed=4), logprobs=5)]
    for name, output in run(engine, jobs).items():
        assert b"".join(one.data for one in output.scores) == output.data
        for one in output.scores:
            values = [value for _, value in one.top]
            assert values == sorted(values, reverse=True)
            assert one.logprob is not None
            assert max([*values, one.logprob]) <= 0
            assert sum(2.718281828**value for value in values) <= 1.0001
            assert dict(one.top).get(one.data, one.logprob) == one.logprob
            assert one.logprob <= values[0]
            assert name == "seeded" or one.top[0] == (one.data, one.logprob)


def scores_are_of_the_model_alone(make: EngineMaker) -> None:
    """Not of what the request made of its distribution."""
    engine = loaded(make)
    free = run_one(engine, job(engine, "a", max_tokens=1, logprobs=1)).scores[0]
    letter = some_ids(engine, 1)[0]
    forced = run_one(engine, job(engine, "a", max_tokens=1, logprobs=1, constraint=OneOf([letter, letter]))).scores[0]
    assert forced.data == engine.tokenizer.pieces[letter]
    assert forced.logprob is not None
    assert free.logprob is not None
    assert forced.logprob <= forced.top[0][1] <= 0


def a_control_token_is_scored_by_its_name(make: EngineMaker) -> None:
    engine = loaded(make)
    tokenizer = engine.tokenizer
    name, token = next((name, token) for name, token in tokenizer.control.items() if token not in tokenizer.end)
    one = EngineJob("a", (token, *some_ids(engine, 1), token), 2, GREEDY, logprobs=1, score_prompt=True)
    output = run_one(engine, evolve(one, constraint=OneOf([token, token])))
    assert [score.data for score in output.scores] == [name.encode()] * 2
    assert [output.prompt_scores[place].data for place in (0, 2)] == [name.encode()] * 2


def every_prompt_token_is_scored_once_whatever_the_chunks(make: EngineMaker) -> None:
    told = {}
    for chunk in (7, 200):
        engine = loaded(make, prefill_chunk=chunk, context=256)
        one = job(engine, "a", " ".join([PROMPT] * 7), max_tokens=1, logprobs=2, score_prompt=True)
        assert len(one.tokens) > 64
        output = run_one(engine, one)
        scores = told[chunk] = output.prompt_scores
        assert len(scores) == len(one.tokens)
        assert (scores[0].logprob, scores[0].top) == (None, ())
        for score in scores[1:]:
            assert score.logprob is not None
            assert score.logprob <= score.top[0][1] <= 0
            assert len(score.top) == 2
        assert len(output.scores) == 1
    assert told[7] == told[200]


def a_prompt_can_be_scored_without_new_tokens(make: EngineMaker) -> None:
    engine = loaded(make)
    one = job(engine, "a", max_tokens=0, logprobs=0, score_prompt=True)
    output = run_one(engine, one)
    assert (len(output.prompt_scores), output.ids, output.reason) == (len(one.tokens), [], FinishReason.LENGTH)
    single = EngineJob("a", one.tokens[:1], 0, GREEDY, logprobs=0, score_prompt=True)
    assert [score.logprob for score in run_one(engine, single).prompt_scores] == [None]


def prompts_that_are_scored_share_a_step_with_others(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128, context=256)
    long = " ".join([PROMPT] * 7)
    jobs = [job(engine, str(n), long, max_tokens=2, logprobs=1, score_prompt=n < 2) for n in range(3)]
    outputs = run(engine, jobs)
    assert [len(outputs[one.id].prompt_scores) for one in jobs] == [len(jobs[0].tokens)] * 2 + [0]
    assert outputs["0"].ids == outputs["1"].ids == outputs["2"].ids


def a_constraint_rules_every_token(make: EngineMaker) -> None:
    engine = loaded(make)
    wanted = some_ids(engine, 5)
    for sampling in (GREEDY, Sampling(1.0, seed=1), Sampling(2.0, top_k=2, seed=1), Sampling(1.0, top_p=0.1, seed=1)):
        output = run_one(engine, job(engine, "a", max_tokens=20, sampling=sampling, constraint=OneOf(wanted)))
        assert (output.ids, output.reason) == (wanted, FinishReason.STOP)


def a_complete_constraint_ends_the_job_in_the_step_of_its_last_token(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128)
    wanted = some_ids(engine, 2)
    engine.add(job(engine, "a", max_tokens=2, constraint=OneOf(wanted)))
    engine.step()
    last = engine.step()
    assert [type(event) for event in last] == [Token, Finished]
    assert last[-1] == Finished("a", FinishReason.STOP)
    assert list(engine.step()) == []


def an_end_token_may_come_where_the_constraint_has_it(make: EngineMaker) -> None:
    engine = loaded(make)
    wanted, end = some_ids(engine, 2), min(engine.tokenizer.end)
    constraint = OneOf(wanted, end=[end])
    output = run_one(engine, job(engine, "a", max_tokens=9, constraint=constraint))
    assert (output.ids, output.reason) == (wanted, FinishReason.STOP)
    assert constraint.accepted == wanted


def max_tokens_cuts_a_constrained_output(make: EngineMaker) -> None:
    engine = loaded(make)
    wanted = some_ids(engine, 5)
    output = run_one(engine, job(engine, "a", max_tokens=3, constraint=OneOf(wanted)))
    assert (output.ids, output.reason) == (wanted[:3], FinishReason.LENGTH)


def a_constraint_that_breaks_fails_its_own_job_alone(make: EngineMaker) -> None:
    engine = loaded(make)
    expected = run_one(engine, job(engine, "b", OTHER)).ids
    wanted = some_ids(engine, 3)
    for constraint, made, reason in (
        (Faulty(wanted, mask=2), 1, "the grammar is too hard"),
        (Faulty(wanted, accept=2), 1, "the grammar is lost"),
        (OneOf(), 0, "No token may come next: the request forbids all of them."),
    ):
        outputs = run(engine, [job(engine, "a", constraint=constraint), job(engine, "b", OTHER)])
        assert (outputs["a"].ids, outputs["a"].error) == (wanted[:made], reason)
        assert outputs["a"].unanswerable
        assert outputs["b"].ids == expected
        assert engine.kv_used == 0


def siblings(engine: Engine, count: int, text: str = PROMPT, **more: int) -> list[EngineJob]:
    """Choices of one request: the same prompt, seeds that rise."""
    return [
        job(engine, f"{text[:3]}{n}", text, sampling=Sampling(1.0, seed=n), prompt_id=text, **more)
        for n in range(count)
    ]


def alone(make: EngineMaker, jobs: Sequence[EngineJob], **shape: int) -> list[list[int]]:
    engine = loaded(make, **shape)
    return [run_one(engine, evolve(one, prompt_id="", cache_prompt=False)).ids for one in jobs]


def siblings_compute_their_prompt_once_and_write_what_they_write_alone(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=8)
    jobs = siblings(engine, 3)
    outputs = run(engine, [*jobs, job(engine, "other", OTHER)])
    total = len(jobs[0].tokens)
    assert [outputs[one.id].cached for one in jobs] == [0, total - 1, total - 1]
    assert [outputs[one.id].progress[-1] for one in jobs] == [total] * 3
    assert [len(outputs[one.id].progress) for one in jobs[1:]] == [1, 1]
    assert outputs["other"].cached == 0
    assert [outputs[one.id].ids for one in jobs] == alone(make, jobs)
    assert engine.kv_used == 0


def siblings_beyond_the_slots_find_the_prompt_that_is_left(make: EngineMaker) -> None:
    engine = loaded(make, slots=2)
    jobs = siblings(engine, 5)
    total = len(jobs[0].tokens)
    outputs = run(engine, jobs[:2])
    outputs |= run(engine, jobs[2:4])  # one in the very slot, one in another or by copy
    engine.add(job(engine, "other", OTHER, max_tokens=30))
    step(engine, outputs)
    engine.add(jobs[4])
    finish(engine, outputs)
    assert [outputs[one.id].cached for one in jobs] == [0, *[total - 1] * 4]
    assert [outputs[one.id].ids for one in jobs] == alone(make, jobs)


def held_tokens_are_right_for_siblings(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128)
    first, second = siblings(engine, 2)
    total = len(first.tokens)
    engine.add(first)
    assert engine.waits(second)
    engine.step()
    assert engine.kv_used == total
    engine.add(second)
    assert engine.kv_used == total + total - 1
    engine.step()
    assert engine.kv_used == total + 1 + total
    engine.cancel(first.id)
    assert engine.kv_used == total
    engine.cancel(second.id)
    assert engine.kv_used == 0


def a_sibling_goes_on_when_the_one_it_waits_for_is_cancelled(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=4)
    first, *others = siblings(engine, 3)
    engine.add(first)
    outputs: dict[str, Output] = defaultdict(Output)
    step(engine, outputs)
    assert all(engine.waits(one) for one in others)
    engine.cancel(first.id)
    assert not any(engine.waits(one) for one in others)
    finish(engine, outputs, others)
    assert [outputs[one.id].ids for one in others] == alone(make, others)
    assert outputs[others[1].id].cached == len(first.tokens) - 1


def with_words(engine: Engine, name: str, count: int, end: str, **more: Any) -> EngineJob:
    """A prompt whose first words are those of every other one."""
    return job(engine, name, "one two three four five " * count + end, **more)


def a_prefix_is_computed_once_while_it_is_in_a_slot(make: EngineMaker) -> None:
    """By who ended, by who still runs, and by itself again; the text is that of a cold engine."""
    engine = loaded(make, slots=3, context=512, prefill_chunk=128)
    jobs = [with_words(engine, end, 30, f"{end} and more", max_tokens=4) for end in ("x", "y", "z")]
    first = run_one(engine, jobs[0])
    engine.add(jobs[1])
    outputs: dict[str, Output] = defaultdict(Output)
    step(engine, outputs)
    finish(engine, outputs, [jobs[2]])
    again = run_one(engine, evolve(jobs[0], id="again"))
    shared = common(jobs[0].tokens, jobs[1].tokens)
    assert first.cached == 0
    for one, output in ((jobs[1], outputs["y"]), (jobs[2], outputs["z"])):
        assert output.cached == aligned(shared, len(one.tokens), 128) > 64
        assert output.progress[-1] == len(one.tokens)
    assert again.cached == aligned(shared, len(jobs[0].tokens), 128)
    assert again.ids == first.ids
    for one in jobs[1:]:
        assert outputs[one.id].ids == run_one(loaded(make, context=512, prefill_chunk=128), one).ids


def a_conversation_goes_on_where_its_answer_ended(make: EngineMaker) -> None:
    engine = loaded(make, context=512)
    first = with_words(engine, "a", 5, "end", max_tokens=6)
    answer = run_one(engine, first).ids
    longer = (*first.tokens, *answer, *first.tokens[1:5])
    assert run_one(engine, evolve(first, id="b", tokens=longer)).cached == len(first.tokens) + len(answer) - 1


def jobs_that_begin_alike_wait_for_the_first(make: EngineMaker) -> None:
    engine = loaded(make, slots=4, context=1024, prefill_chunk=64)
    jobs = [with_words(engine, str(n), 60, f"{n}", max_tokens=2) for n in range(3)]
    other, short = job(engine, "other", OTHER), with_words(engine, "short", 6, "end")
    engine.add(jobs[0])
    assert [engine.waits(one) for one in (jobs[1], jobs[2], other, short)] == [True, True, False, False]
    assert not engine.waits(evolve(jobs[1], tenant="another"))
    assert not engine.waits(evolve(jobs[1], cache_prompt=False))
    assert not engine.waits(evolve(jobs[1], score_prompt=True, logprobs=0))
    outputs: dict[str, Output] = defaultdict(Output)
    finish(engine, outputs, [*jobs[1:], other])
    shared = common(jobs[0].tokens, jobs[1].tokens)
    assert outputs[jobs[0].id].cached == 0
    assert all(shared - WORTH <= outputs[one.id].cached <= shared for one in jobs[1:])
    assert outputs["other"].cached == 0
    assert [outputs[one.id].ids for one in jobs] == alone(make, jobs, context=1024, prefill_chunk=64)


def what_a_job_computed_is_not_for_every_other(make: EngineMaker) -> None:
    """Not for another tenant, not for a prompt to be scored, and neither from nor for who wants no cache."""
    engine = loaded(make, slots=2, context=512)
    first = with_words(engine, "a", 20, "end", max_tokens=2, tenant="t")
    expected = run_one(engine, first).ids
    for change in ({"tenant": ""}, {"tenant": "u"}, {"cache_prompt": False}):
        output = run_one(engine, evolve(first, id="b", **change))
        assert (output.cached, output.ids) == (0, expected), change
    assert run_one(engine, evolve(first, id="b", score_prompt=True, logprobs=0)).cached == 0
    engine = loaded(make, slots=1, context=512)
    run_one(engine, evolve(first, cache_prompt=False))
    assert run_one(engine, first).cached == 0


def only_the_first_sibling_scores_the_prompt(make: EngineMaker) -> None:
    engine = loaded(make)
    jobs = [evolve(one, logprobs=1, score_prompt=True) for one in siblings(engine, 2)]
    outputs = run(engine, jobs)
    assert [len(outputs[one.id].prompt_scores) for one in jobs] == [len(jobs[0].tokens), 0]
    assert [len(outputs[one.id].scores) for one in jobs] == [6, 6]


def after_a_reset_nothing_is_left_to_share(make: EngineMaker) -> None:
    engine = loaded(make)
    first, second = siblings(engine, 2)
    run_one(engine, first)
    engine.reset()
    assert run_one(engine, second).cached == 0


def jobs_of_every_kind_run_side_by_side_as_they_run_alone(make: EngineMaker) -> None:
    engine = loaded(make, slots=8, prefill_chunk=16)
    letters = some_ids(engine, 4)

    def jobs() -> list[EngineJob]:
        return [
            job(engine, "greedy", max_tokens=8),
            job(engine, "scored", OTHER, max_tokens=8, logprobs=3, score_prompt=True),
            job(engine, "constrained", max_tokens=8, constraint=OneOf([*letters, *letters])),
            job(engine, "cut", OTHER, max_tokens=8, sampling=Sampling(0.8, top_k=40, top_p=0.9, min_p=0.05, seed=3)),
            job(
                engine,
                "penalised",
                max_tokens=8,
                sampling=Sampling(0.0, repeat_penalty=1.3, presence_penalty=1.0, logit_bias=((5, 2.0),)),
            ),
            job(engine, "waiting", OTHER, max_tokens=8, min_tokens=8, ignore_eos=True),
            *siblings(engine, 2, max_tokens=8),
        ]

    together = run(engine, jobs())
    for one in jobs():
        by_itself = run_one(engine, evolve(one, prompt_id="", cache_prompt=False))
        assert together[one.id].ids == by_itself.ids, one.id
        assert together[one.id].scores == by_itself.scores
        assert together[one.id].prompt_scores == by_itself.prompt_scores


def events_of_a_step_are_in_order(make: EngineMaker) -> None:
    """Progress, then the prompt's scores, then the token, then the end."""
    engine = loaded(make, prefill_chunk=128)
    engine.add(job(engine, "a", max_tokens=1, logprobs=1, score_prompt=True))
    assert [type(event) for event in engine.step()] == [Progress, PromptScores, Token, Finished]
    engine.add(job(engine, "a", constraint=OneOf()))
    assert [type(event) for event in engine.step()] == [Progress, Failed]


JOB_CONTRACT = (
    the_vocabulary_says_what_its_tokens_are,
    control_tokens_are_parsed_by_name_and_only_where_that_is_asked,
    without_a_leading_token_an_empty_text_has_none,
    a_text_that_begins_with_the_leading_token_gets_no_second,
    no_new_tokens_means_the_prompt_alone,
    end_tokens_come_only_after_min_tokens,
    ignore_eos_goes_on_to_max_tokens,
    stop_token_ids_end_a_job_and_are_not_told,
    a_bias_chooses_and_bans,
    tokens_outside_the_vocabulary_are_refused,
    shown_control_tokens_have_their_name_as_text,
    scores_come_only_where_they_are_asked_for,
    scores_are_real,
    scores_are_of_the_model_alone,
    a_control_token_is_scored_by_its_name,
    every_prompt_token_is_scored_once_whatever_the_chunks,
    a_prompt_can_be_scored_without_new_tokens,
    prompts_that_are_scored_share_a_step_with_others,
    a_constraint_rules_every_token,
    a_complete_constraint_ends_the_job_in_the_step_of_its_last_token,
    an_end_token_may_come_where_the_constraint_has_it,
    max_tokens_cuts_a_constrained_output,
    a_constraint_that_breaks_fails_its_own_job_alone,
    siblings_compute_their_prompt_once_and_write_what_they_write_alone,
    siblings_beyond_the_slots_find_the_prompt_that_is_left,
    held_tokens_are_right_for_siblings,
    a_sibling_goes_on_when_the_one_it_waits_for_is_cancelled,
    a_prefix_is_computed_once_while_it_is_in_a_slot,
    a_conversation_goes_on_where_its_answer_ended,
    jobs_that_begin_alike_wait_for_the_first,
    what_a_job_computed_is_not_for_every_other,
    only_the_first_sibling_scores_the_prompt,
    after_a_reset_nothing_is_left_to_share,
    jobs_of_every_kind_run_side_by_side_as_they_run_alone,
    events_of_a_step_are_in_order,
)
