"""What the fake engine offers to tests beside the contract: scripts, faults and the time of a step."""

from typing import Any

import jinja2
import pytest

from slim.engines.fake import FakeEngine, JobFault
from slim.engines.fake_vocab import TEMPLATE, FakeTokenizer, token_id
from slim.types import EngineJob, Failed, Finished, FinishReason, Progress, Sampling, Segment, Token
from support.constraints import OneOf


def make_job(name: str, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 5) -> EngineJob:
    return EngineJob(name, prompt, max_tokens, Sampling(temperature=0))


def told(engine: FakeEngine, steps: int) -> list[bytes | Finished | Failed]:
    """The tokens' bytes and the ends of so many steps, in order."""
    events = [event for _ in range(steps) for event in engine.step() if not isinstance(event, Progress)]
    return [event.data if isinstance(event, Token) else event for event in events]


def test_the_words_are_the_same_in_every_process() -> None:
    engine = FakeEngine()
    engine.add(make_job("a", max_tokens=3))
    assert told(engine, 3) == [b" north", b" vale", b" heath", Finished("a", FinishReason.LENGTH)]


def test_a_script_is_played_to_every_job_and_ends_with_stop() -> None:
    engine = FakeEngine(script=[b"\xf0\x9f", b"\x98\x80", b""])
    for name in "ab":
        engine.add(make_job(name))
        assert told(engine, 4) == [b"\xf0\x9f", b"\x98\x80", b"", Finished(name, FinishReason.STOP)]


def test_max_tokens_cuts_a_script() -> None:
    engine = FakeEngine(script=[b"a", b"b", b"c"])
    engine.add(make_job("a", max_tokens=2))
    assert told(engine, 3) == [b"a", b"b", Finished("a", FinishReason.LENGTH)]


def test_a_job_fault_fails_that_job_alone() -> None:
    engine = FakeEngine(script=[b"a", JobFault("bad luck")])
    engine.add(make_job("a"))
    engine.script = None
    engine.add(make_job("b", max_tokens=2))
    last = told(engine, 2)[2:]
    assert last[0] == Failed("a", "bad luck")
    assert last[-1] == Finished("b", FinishReason.LENGTH)
    assert engine.kv_used == 0


def test_any_other_exception_breaks_the_step_and_reset_forgets_it() -> None:
    engine = FakeEngine(script=[b"a", OSError("broken")])
    engine.add(make_job("a"))
    engine.step()
    with pytest.raises(OSError, match="broken"):
        engine.step()
    engine.reset()
    assert engine.step() == []
    engine.script = [b"b"]
    engine.add(make_job("a"))
    assert told(engine, 2) == [b"b", Finished("a", FinishReason.STOP)]


def test_a_load_can_fail() -> None:
    engine = FakeEngine(load_error="no such model")
    with pytest.raises(RuntimeError, match=r"^no such model$"):
        engine.load()
    engine.close()


def test_a_step_says_what_it_took() -> None:
    engine = FakeEngine(prefill_chunk=4, step_seconds=lambda batch, prefill: batch + prefill / 100)
    engine.add(make_job("a", prompt=(1,)))
    engine.add(make_job("b", prompt=(1,) * 6, max_tokens=1))
    owed = []
    for _ in range(3):
        engine.step()
        owed.append(engine.step_seconds)
    assert owed == pytest.approx([0.01, 1.04, 1.02])
    engine.cancel("a")
    engine.step()
    assert engine.step_seconds == 0


def test_the_vocabulary_is_small_and_known() -> None:
    tokenizer = FakeTokenizer()
    assert len(tokenizer.pieces) == 32768
    assert tokenizer.pieces[65] == b"A"
    assert [tokenizer.pieces[token] for token in tokenizer.control.values()] == [b""] * len(tokenizer.control)
    assert tokenizer.control["<|im_end|>"] in tokenizer.end
    assert token_id(b" vale") == tokenizer.pieces.index(b" vale")
    assert token_id(b"\x00") == 0


def test_a_prompt_has_a_token_for_each_word_and_each_run_of_white_space() -> None:
    encode = FakeTokenizer().encode
    assert len(encode([Segment("Once upon  a\n time", False)])) == 7
    assert len(encode([Segment("half a wo", False), Segment("rd", True)])) == 5
    marks = encode([Segment("<|im_start|>user hi<|im_end|>", True)])
    assert [token in (257, 258) for token in marks] == [True, False, False, False, True]
    assert len(encode([Segment("<|im_start|>user hi<|im_end|>", False)])) == 3


def test_its_template_writes_a_conversation_with_tools() -> None:
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    text = template.render(messages=messages, tools=[{"name": "add"}], add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert '<tools>\n{"name": "add"}\n</tools>' in text
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>" in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>") == 5
    plain = template.render(messages=messages[:2])
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"


def run_constrained(constraint: Any, **job: Any) -> list[bytes | Finished | Failed]:
    engine = FakeEngine()
    engine.add(EngineJob("a", (1, 2, 3), 20, Sampling(temperature=0), constraint=constraint, **job))
    return told(engine, 20)


def byte_runs(*texts: bytes) -> list[tuple[int, ...]]:
    return [tuple(text) for text in texts]


def test_a_constraint_is_closed_as_soon_as_it_can_be() -> None:
    quotes = OneOf(*byte_runs(b'"', *(b'"%c' % letter for letter in range(97, 123))), end=[258])
    assert run_constrained(quotes) == [b'"', Finished("a", FinishReason.STOP)]
    inner = OneOf(*byte_runs(b'{"a":1}', b'{"a":1,"b":2}'))
    assert b"".join(piece for piece in run_constrained(inner) if isinstance(piece, bytes)) == b'{"a":1}'


def test_an_answer_under_a_constraint_begins_before_it_ends() -> None:
    assert run_constrained(OneOf((), (65,), end=[258])) == [b"A", Finished("a", FinishReason.STOP)]


def test_what_a_constraint_leaves_open_is_the_same_in_every_process() -> None:
    words = OneOf(*byte_runs(*(b"%c" % letter for letter in range(97, 123))))
    assert run_constrained(words)[0] == b"r"


def test_a_script_is_played_whatever_a_constraint_says() -> None:
    engine = FakeEngine(script=[b"free"])
    engine.add(EngineJob("a", (1,), 5, constraint=OneOf((65,))))
    assert told(engine, 2) == [b"free", Finished("a", FinishReason.STOP)]


def test_a_script_has_scores_too() -> None:
    engine = FakeEngine(script=[b"x", b"y"])
    engine.add(EngineJob("a", (1,), 5, Sampling(temperature=0), logprobs=2))
    tokens = [event for _ in range(2) for event in engine.step() if isinstance(event, Token)]
    assert [token.score.top[0][0] for token in tokens if token.score is not None] == [b"x", b"y"]


def test_a_shared_prompt_costs_one_prefill() -> None:
    engine = FakeEngine(prefill_chunk=100, step_seconds=lambda batch, prefill: prefill)
    jobs = [EngineJob(name, (1,) * 50, 3, prompt_id="p") for name in "abc"]
    engine.add(jobs[0])
    owed = []
    for _ in range(3):
        engine.step()
        owed.append(engine.step_seconds)
        for job in jobs[1:]:
            assert not engine.waits(job)
            engine.add(job)
        jobs = []
    assert owed == [50, 2, 0]


def test_llama_cpps_samplers_are_not_promised() -> None:
    assert FakeEngine().load().samplers == frozenset()
