"""Copies of KV in RAM: what is kept, what is found, what goes first."""

from slim.engines.prefixes import Content
from slim.engines.prompt_cache import PromptCache
from slim.types import EngineJob


def content(*tokens: int, tenant: str = "") -> Content:
    return Content(tokens, tenant)


def ask(*tokens: int, tenant: str = "") -> EngineJob:
    return EngineJob("a", tokens, 8, tenant=tenant)


def found(cache: PromptCache, job: EngineJob) -> tuple[bytes | None, int]:
    stored, tokens = cache.best(job)
    return (None if stored is None else stored.state), tokens


def test_the_copy_with_most_of_a_prompt_is_found() -> None:
    cache = PromptCache(100, 8)
    cache.put(content(1, 2, 3), b"short")
    cache.put(content(1, 2, 4, 5), b"long")
    assert found(cache, ask(1, 2, 4, 5, 6)) == (b"long", 4)
    assert found(cache, ask(1, 2, 3, 9)) == (b"short", 3)
    assert found(cache, ask(7, 8)) == (None, 0)
    assert found(cache, ask(1, 2, 3, 9, tenant="other")) == (None, 0)


def test_the_least_recently_used_copy_makes_room() -> None:
    cache = PromptCache(30, 8)
    for number in range(3):
        cache.put(content(number, 1, 1), b"%d" % number * 10)
    stored, _ = cache.best(ask(0, 1, 1, 1))
    assert stored is not None
    assert cache.use(stored) == b"0" * 10
    cache.put(content(3, 1, 1), b"3" * 10)
    assert [found(cache, ask(number, 1, 1, 1))[1] for number in range(4)] == [3, 0, 3, 3]
    assert cache.size == 30


def test_a_copy_larger_than_the_budget_is_not_kept_and_costs_no_other() -> None:
    cache = PromptCache(10, 8)
    cache.put(content(1, 2), b"x" * 10)
    cache.put(content(3, 4), b"y" * 11)
    assert (found(cache, ask(1, 2, 3))[1], found(cache, ask(3, 4, 5))[1]) == (2, 0)


def test_a_longer_copy_takes_the_place_of_its_beginnings() -> None:
    cache = PromptCache(100, 8)
    cache.put(content(1, 2), b"short")
    cache.put(content(1, 2, tenant="other"), b"other")
    assert cache.wants(content(1, 2, 3))
    cache.put(content(1, 2, 3), b"long")
    assert cache.size == len(b"long" + b"other")
    assert not cache.wants(content(1, 2))
    assert not cache.wants(content(1, 2, 3))


def test_without_a_budget_nothing_is_wanted() -> None:
    assert not PromptCache(0, 8).wants(content(1, 2))
