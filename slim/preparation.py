"""From a validated request to what an engine needs of it: the template rendered, text tokenized, grammar compiled.

Pure, and slow: milliseconds for a long prompt, more for a large schema. So it runs in a worker thread. Knows no queue
and no HTTP.
"""

from collections.abc import Callable, Iterable

from attrs import define, evolve, field, frozen

from .chat.formats import ChatPlan, plan
from .chat.output import OutputFormat
from .chat.template import ChatTemplate
from .engines.base import Tokenizer
from .errors import ContextLengthExceeded, InvalidRequest
from .guidance import Guide, Guided
from .text import Utf8Joiner
from .types import ChatPrompt, Constraint, EngineInfo, Generation, Grammar, Segment

NO_TEMPLATE = (
    "This model has no chat template of its own. Name a Jinja file in SLM_CHAT_TEMPLATE, or use /v1/completions."
)


@frozen(eq=False)
class Prepared:
    """One prompt, ready for an engine."""

    tokens: tuple[int, ...]
    max_tokens: int
    """What the context leaves of the request's."""
    echo: str = ""
    """The prompt's text, where the request wants it back."""
    constraints: tuple[Constraint | None, ...] = (None,)
    """One for each choice."""
    shown: frozenset[int] = frozenset()
    output: OutputFormat | None = None
    """How a chat answer is read; None for plain text."""


@define(eq=False)
class Model:
    """A loaded model, seen from outside of its engine. Safe to use from several threads."""

    info: EngineInfo
    tokenizer: Tokenizer
    template_override: str | None = None
    """Jinja text to use instead of the model's own."""
    guide: Guide = field(init=False)
    _template: ChatTemplate | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.guide = Guide(self.tokenizer)

    @property
    def template(self) -> ChatTemplate:
        """Raises InvalidRequest where the model has none, or one that is no Jinja."""
        if self._template is None:
            source = self.template_override or self.info.chat_template
            if source is None:
                raise InvalidRequest(NO_TEMPLATE, "messages")
            try:
                self._template = ChatTemplate(source, self.tokenizer)
            except ValueError as error:
                text = f"This model's chat template can't be used: {error}. Name another in SLM_CHAT_TEMPLATE."
                raise InvalidRequest(text, "messages") from None
        return self._template

    def prepare(self, request: Generation) -> Prepared:
        """Raises InvalidRequest that names the field: for what only the model can tell."""
        self._check_sampling(request)
        if isinstance(request.prompt, ChatPrompt):
            return self._prepare_chat(request, request.prompt)
        tokens = self.tokens(request.prompt, request.param)
        max_tokens = self._room(tokens, request)
        echo = self._text(request.prompt) if request.echo else ""
        constraint = None if request.grammar is None else self.guide.compile(request.grammar)
        return Prepared(tokens, max_tokens, echo, _copies(constraint, request.choices))

    def _prepare_chat(self, request: Generation, chat: ChatPrompt) -> Prepared:
        rendered = self.template.render(chat)
        tokens = self.tokenizer.encode(rendered)
        max_tokens = self._room(tokens, request)
        planned = plan(self.template, chat, rendered, request.grammar, self.tokenizer)
        constraint = None
        if request.grammar is not None or planned.main is not None:
            constraint = self._compile(request.grammar, planned, lenient=chat.tool_choice == "auto")
        return Prepared(tokens, max_tokens, "", _copies(constraint, request.choices), planned.shown, planned.output)

    def _compile(self, answer: Grammar | None, planned: ChatPlan, *, lenient: bool) -> Guided:
        """Where the model may choose not to call, a tool whose schema can't be honoured takes any JSON object."""
        try:
            return self.guide.compile(answer, planned.main, planned.parts)
        except InvalidRequest:
            if not lenient:
                raise
        parts = {name: self._or_any_object(part) for name, part in planned.parts.items()}
        return self.guide.compile(answer, planned.main, parts)

    def _or_any_object(self, part: Grammar) -> Grammar:
        try:
            self.guide.compile(part)
        except InvalidRequest:
            return Grammar("json_object", None, part.param)
        return part

    def tokens(self, prompt: tuple[Segment, ...] | tuple[int, ...], param: str) -> tuple[int, ...]:
        """Token ids of a prompt that is no conversation. Raises InvalidRequest for ids that the model doesn't have."""
        if isinstance(prompt[0], Segment):
            return self.tokenizer.encode(prompt)
        self.check_ids(prompt, param)
        return prompt

    def check_ids(self, ids: Iterable[int], param: str) -> None:
        """Raises InvalidRequest for one that the model doesn't have."""
        size = len(self.tokenizer.pieces)
        for number in ids:
            if not 0 <= number < size:
                text = f"{param}: token id {number} is out of vocabulary: this model has ids from 0 to {size - 1}"
                raise InvalidRequest(text, param)

    def _text(self, prompt: tuple[Segment, ...] | tuple[int, ...]) -> str:
        """The text of a prompt, for its echo; bytes that are no text become U+FFFD."""
        if isinstance(prompt[0], Segment):
            return "".join(segment.text for segment in prompt)
        joiner = Utf8Joiner()
        return "".join(map(joiner.feed, map(names(self.tokenizer), prompt))) + joiner.flush()

    def _room(self, tokens: tuple[int, ...], request: Generation) -> int:
        """New tokens that this request may make."""
        room = self.info.context - len(tokens)
        if room < min(request.max_tokens, 1):
            raise ContextLengthExceeded(len(tokens), request.max_tokens, self.info.context, request.param)
        return min(request.max_tokens, room)

    def _check_sampling(self, request: Generation) -> None:
        sampling = request.sampling
        if sampling.logit_bias:
            self.check_ids((number for number, _ in sampling.logit_bias), "logit_bias")
        self.check_ids(request.stop_token_ids, "stop_token_ids")
        wanted = {"dry": "dry_multiplier", "xtc": "xtc_probability", "mirostat": "mirostat"}
        for name, param in wanted.items():
            if getattr(sampling, name) is not None and name not in self.info.samplers:
                raise InvalidRequest(f"{param}: this engine does not have this sampler: omit it", param)


def names(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """What a reader is shown of a token id: its bytes, or the name of a control token."""
    control = {number: name.encode() for name, number in tokenizer.control.items()}
    pieces = tokenizer.pieces
    return lambda number: pieces[number] or control.get(number, b"")


def _copies(constraint: Guided | None, count: int) -> tuple[Constraint | None, ...]:
    """The constraint and fresh ones like it: each choice walks through its own."""
    if constraint is None:
        return (None,) * count
    return (constraint, *(constraint.copy() for _ in range(count - 1)))


def with_choice(request: Generation, choice: int) -> Generation:
    """The request as its choice number `choice` samples it: with a given seed each choice has one of its own."""
    seed = request.sampling.seed
    if choice == 0 or seed is None:
        return request
    return evolve(request, sampling=evolve(request.sampling, seed=seed + choice))
