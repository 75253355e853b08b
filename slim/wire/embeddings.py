"""`POST /v1/embeddings`: the body in, the answer out. Knows no HTTP and no engine."""

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from attrs import frozen

from ..types import Segment
from .convert import Fault, Range, read_object, refuse, strict_converter, structure
from .render import compact
from .requests.call import RequestLimits
from .requests.completion import PROMPTS, TextOrIds, prompt_faults, prompt_path
from .requests.unbuilt import Table, unbuilt_faults

MAX_INPUTS = 2048  # OpenAI's reference

UNBUILT: Table = {
    "add_special_tokens": (True,),
    "embd_normalize": (2,),
    "input_type": (),
    "instruction": (),
    "messages": (),
    "normalize": (True,),
    "truncate_prompt_tokens": (),
    "truncation": (False,),
}
"""See `slim.wire.requests.unbuilt`."""


@frozen(kw_only=True)
class EmbeddingBody:
    """The fields that are honoured."""

    input: Annotated[
        tuple[TextOrIds, ...],
        PROMPTS,
        f"Text, in which control tokens are ordinary text, or token ids, used as they are; 1 to {MAX_INPUTS} of them.",
    ]
    encoding_format: Annotated[
        Literal["float", "base64"], "base64: the bytes of little-endian 32-bit floats, a third of the size."
    ] = "float"
    dimensions: Annotated[int | None, Range(1, 2**31 - 1), "Only the model's own number is allowed."] = None


@frozen
class EmbeddingCall:
    """A valid request and how its answer is to be sent."""

    inputs: tuple[tuple[Segment, ...] | tuple[int, ...], ...]
    base64: bool
    dimensions: int | None

    def path(self, place: int) -> str:
        """The name of an input in error texts."""
        return prompt_path("input", place, len(self.inputs))


_CONVERTER = strict_converter()


def parse_embeddings(body: bytes, limits: RequestLimits) -> EmbeddingCall:
    """Read a request body. `model` and `user` are ignored.

    Raises InvalidRequest that names every bad field, and nothing else, whatever the bytes are.
    """
    fields = read_object(body)
    asked = structure(_CONVERTER, fields, EmbeddingBody, unbuilt_faults(fields, UNBUILT))
    # A document may well quote a control token; whoever means one sends ids.
    inputs = tuple((Segment(item, parse_special=False),) if isinstance(item, str) else item for item in asked.input)
    call = EmbeddingCall(inputs, asked.encoding_format == "base64", asked.dimensions)
    refuse(_faults(asked, call, limits.max_prompt_chars))
    return call


def _faults(asked: EmbeddingBody, call: EmbeddingCall, limit: int) -> Iterator[Fault]:
    if len(asked.input) > MAX_INPUTS:
        yield Fault("input", f"has {len(asked.input)} entries: at most {MAX_INPUTS} are allowed")
        return
    for place, item in enumerate(asked.input):
        if not item:
            yield Fault(call.path(place), "must not be empty")
        yield from prompt_faults(call.path(place), item, limit)


class EmbeddingAnswer:
    """Gathers the vectors of one request, in any order. Each is rendered as it comes, not all at the end at once."""

    def __init__(self, call: EmbeddingCall) -> None:
        self._base64 = call.base64
        self._vectors = [""] * len(call.inputs)

    def add(self, place: int, vector: Sequence[float]) -> None:
        """The vector of the input at that place."""
        if self._base64:
            data = struct.pack(f"<{len(vector)}f", *vector)
            self._vectors[place] = f'"{base64.b64encode(data).decode("ascii")}"'
        else:
            # Nine digits name every 32-bit float; Python's own form would write up to seventeen.
            self._vectors[place] = f"[{','.join(f'{number:.9g}' for number in vector)}]"

    def body(self, model: str, tokens: int) -> bytes:
        """The whole answer, after every vector has come; `tokens` is the number of all tokens of the inputs."""
        data = ",".join(
            f'{{"object":"embedding","index":{place},"embedding":{vector}}}'
            for place, vector in enumerate(self._vectors)
        )
        usage = compact({"prompt_tokens": tokens, "total_tokens": tokens})
        return f'{{"object":"list","data":[{data}],"model":{compact(model)},"usage":{usage}}}'.encode("ascii")
