"""Prompts that left their slots: copies of their KV in RAM, least recently used out first. Pure: knows no engine."""

from typing import Any

from attrs import define, field, frozen

from ..types import EngineJob
from .prefixes import Content, covers, usable


@frozen(eq=False)
class Stored:
    """A copy of some KV. `state` is what the engine made of it, and only the engine reads it: `len` gives its bytes."""

    content: Content
    state: Any


@define(eq=False)
class PromptCache:
    """At most `budget` bytes of states."""

    budget: int
    chunk: int
    """Prompts are cut at its multiples: see `slim.engines.prefixes.usable`."""
    size: int = field(init=False, default=0)
    """Bytes."""
    _stored: dict[Stored, None] = field(init=False, factory=dict)
    """The least recently used first."""

    def wants(self, content: Content) -> bool:
        """Whether a copy is worth making: there is room at all, and nothing here begins with the same tokens."""
        return self.budget > 0 and not any(covers(stored.content, content) for stored in self._stored)

    def put(self, content: Content, state: Any) -> None:
        """Keep a copy that fits; drop those of its beginnings, and as many old ones as it takes."""
        if len(state) > self.budget:
            return
        for stored in list(self._stored):
            if covers(content, stored.content):
                self._drop(stored)
        while self.size + len(state) > self.budget:
            self._drop(next(iter(self._stored)))
        self._stored[Stored(content, state)] = None
        self.size += len(state)

    def best(self, job: EngineJob) -> tuple[Stored | None, int]:
        """The copy with most of the job's prompt, and how many of its tokens the job can begin with."""
        best, most = None, 0
        for stored in self._stored:
            tokens = usable(stored.content, job, self.chunk)
            if tokens > most:
                best, most = stored, tokens
        return best, most

    def use(self, stored: Stored) -> Any:
        """Its state. It counts as used just now."""
        self._stored[stored] = self._stored.pop(stored)
        return stored.state

    def _drop(self, stored: Stored) -> None:
        del self._stored[stored]
        self.size -= len(stored.state)
