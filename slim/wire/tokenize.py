"""The routes round the tokenizer and the chat template: their bodies in, their answers out.

`/tokenize` and `/detokenize` are spoken in two forms, llama.cpp's server's and vLLM's, told apart by their fields.
Knows no HTTP and no model.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from attrs import frozen

from ..types import ChatPrompt, Segment
from .convert import (
    ID_LIST,
    BadValue,
    Fault,
    Reader,
    length_faults,
    read_ids,
    read_object,
    refuse,
    strict_converter,
    structure,
)
from .render import compact
from .requests.call import RequestLimits
from .requests.chat import ConversationFields, conversation
from .requests.unbuilt import Table, unbuilt_faults

T = TypeVar("T")

UNBUILT: Table = {"chat_template": ()}
"""See `slim.wire.requests.unbuilt`."""


@frozen(kw_only=True)
class ContentBody:
    """`/tokenize` in the form of llama.cpp's server."""

    content: str
    add_special: Annotated[bool, "With the tokens that the model wants round a text."] = False
    parse_special: Annotated[bool, "Control tokens written in the text are parsed as such."] = True
    with_pieces: Annotated[bool, "Each token comes with its text, or its bytes where they are no text."] = False


@frozen(kw_only=True)
class PromptBody:
    """`/tokenize` in vLLM's form. Control tokens written in the text are parsed as such."""

    prompt: str
    add_special_tokens: Annotated[bool, "With the tokens that the model wants round a text."] = True
    return_token_strs: Annotated[bool, "With the text of each token."] = False


@frozen(kw_only=True, slots=False)
class ConversationBody(ConversationFields):
    """`/tokenize` in vLLM's form for a conversation: the tokens that a chat request would have."""

    add_special_tokens: Annotated[bool, "With the leading token, where the template has not written it."] = True
    return_token_strs: Annotated[bool, "With the text of each token."] = False


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BadValue("must be a list of token ids")
    return read_ids(value)


IDS = Reader(_ids, ID_LIST)


@frozen(kw_only=True)
class TokensBody:
    """`/detokenize`, the same in both forms."""

    tokens: Annotated[tuple[int, ...], IDS, "Token ids; those of control tokens give their names."]


@frozen
class TokenizeCall:
    """A valid request for token ids."""

    prompt: Segment | ChatPrompt
    leading: bool
    """With the tokens that the model wants round a text."""
    pieces: bool
    """The answer shows each token's text."""
    counted: bool
    """It is vLLM's form, which also counts; else that of llama.cpp's server."""


_FORMS = ("content", "prompt", "messages")
_CONVERTER = strict_converter()


def parse_tokenize(body: bytes, limits: RequestLimits) -> TokenizeCall:
    """Raises InvalidRequest that names every bad field, and nothing else, whatever the bytes are.

    Fields are set against each other, and against the limits, only when each is right by itself.
    """
    fields = read_object(body)
    given = [name for name in _FORMS if fields.get(name) is not None]
    if len(given) != 1:
        path = given[1] if given else "prompt"
        refuse([Fault(path, "send exactly one of content (a text), prompt (a text) and messages")])
    if given == ["messages"]:
        told = _read(fields, ConversationBody)
        prompt = conversation(told, limits)
        return TokenizeCall(prompt, told.add_special_tokens, told.return_token_strs, counted=True)
    if given == ["prompt"]:
        asked = _read(fields, PromptBody)
        refuse(length_faults("prompt", len(asked.prompt), limits.max_prompt_chars))
        segment = Segment(asked.prompt, parse_special=True)
        return TokenizeCall(segment, asked.add_special_tokens, asked.return_token_strs, counted=True)
    content = _read(fields, ContentBody)
    refuse(length_faults("content", len(content.content), limits.max_prompt_chars))
    segment = Segment(content.content, content.parse_special)
    return TokenizeCall(segment, content.add_special, content.with_pieces, counted=False)


def parse_detokenize(body: bytes) -> tuple[int, ...]:
    """The ids, maybe none; whether the model has them isn't known here. Raises InvalidRequest."""
    return _read(read_object(body), TokensBody).tokens


def parse_template_request(body: bytes, limits: RequestLimits) -> ChatPrompt:
    """The conversation whose prompt is wanted. Raises InvalidRequest."""
    return conversation(_read(read_object(body), ConversationFields), limits)


def _read(fields: dict[str, Any], cls: type[T]) -> T:
    return structure(_CONVERTER, fields, cls, unbuilt_faults(fields, UNBUILT))


def tokenized(call: TokenizeCall, tokens: Sequence[int], pieces: Sequence[bytes], context: int) -> bytes:
    """The answer to `/tokenize`. `pieces` are the bytes of each token, read only where they were asked for."""
    if call.counted:
        texts = [piece.decode("utf-8", "replace") for piece in pieces] if call.pieces else None
        answer = {"count": len(tokens), "max_model_len": context, "tokens": tokens, "token_strs": texts}
    elif call.pieces:
        answer = {"tokens": [{"id": token, "piece": _piece(data)} for token, data in zip(tokens, pieces, strict=True)]}
    else:
        answer = {"tokens": tokens}
    return compact(answer).encode("ascii")


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def detokenized(data: bytes) -> bytes:
    """The answer to `/detokenize`, under the names of both forms. Bytes that are no UTF-8 become U+FFFD."""
    text = data.decode("utf-8", "replace")
    return compact({"content": text, "prompt": text}).encode("ascii")


def template_applied(segments: Sequence[Segment]) -> bytes:
    """The answer to `/apply-template`."""
    return compact({"prompt": "".join(segment.text for segment in segments)}).encode("ascii")


def tokenizer_info(*, bos: str, eos: str, chat_template: str | None, context: int) -> bytes:
    """The answer to `/tokenizer_info`: names of Hugging Face's tokenizer_config.json, null for what there isn't."""
    return compact(
        {
            "bos_token": bos or None,
            "eos_token": eos or None,
            "pad_token": None,
            "chat_template": chat_template,
            "model_max_length": context,
        }
    ).encode("ascii")
