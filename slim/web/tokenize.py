"""`/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`: what a client may ask of the model's words.

They take no place and no slot; their work runs beside the tokenizing of prompts, off the event loop.
"""

from attrs import frozen

from ..errors import InvalidRequest
from ..preparation import Model, names
from ..scheduler import Scheduler
from ..types import Segment
from ..wire import tokenize as wire
from ..wire.requests import RequestLimits
from .generation import Bodies
from .http import Reply, Request


@frozen(eq=False)
class TokenizerRoutes:
    """The handlers and what they need. Each raises SlimError while nothing has been sent."""

    scheduler: Scheduler
    bodies: Bodies
    limits: RequestLimits

    async def tokenize(self, request: Request, reply: Reply) -> None:
        self.scheduler.check_model()
        call = await self.bodies.parse(request, lambda body: wire.parse_tokenize(body, self.limits))
        await reply.whole(200, await self.scheduler.run_with_model(lambda model: tokenized(model, call)))

    async def detokenize(self, request: Request, reply: Reply) -> None:
        self.scheduler.check_model()
        tokens = await self.bodies.parse(request, wire.parse_detokenize)
        await reply.whole(200, await self.scheduler.run_with_model(lambda model: detokenized(model, tokens)))

    async def apply_template(self, request: Request, reply: Reply) -> None:
        self.scheduler.check_model()
        prompt = await self.bodies.parse(request, lambda body: wire.parse_template_request(body, self.limits))

        def work(model: Model) -> bytes:
            return wire.template_applied(model.template.render(prompt))

        await reply.whole(200, await self.scheduler.run_with_model(work))

    async def info(self, request: Request, reply: Reply) -> None:
        await reply.whole(200, await self.scheduler.run_with_model(described))


def tokenized(model: Model, call: wire.TokenizeCall) -> bytes:
    if isinstance(call.prompt, Segment):
        segments: tuple[Segment, ...] = (call.prompt,)
    else:
        segments = model.template.render(call.prompt)
    tokens = model.tokenizer.encode(segments, leading=call.leading)
    pieces = list(map(names(model.tokenizer), tokens)) if call.pieces else []
    return wire.tokenized(call, tokens, pieces, model.info.context)


def detokenized(model: Model, tokens: tuple[int, ...]) -> bytes:
    model.check_ids(tokens, "tokens")
    return wire.detokenized(b"".join(map(names(model.tokenizer), tokens)))


def described(model: Model) -> bytes:
    try:
        template = model.template.source
    except InvalidRequest:
        template = None  # it has none, or one that is no Jinja
    tokenizer = model.tokenizer
    return wire.tokenizer_info(bos=tokenizer.bos, eos=tokenizer.eos, chat_template=template, context=model.info.context)
