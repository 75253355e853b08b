"""The OpenAPI 3.1 document of every route, made from the classes that read the bodies. Knows no handler."""

from functools import cache
from typing import Any

from attrs import frozen

from .embeddings import EmbeddingBody
from .render import compact
from .requests.chat import ChatBody, ConversationFields
from .requests.completion import CompletionBody
from .schemas import Schema, body_schemas, reference
from .shapes import ANSWERS
from .tokenize import ContentBody, ConversationBody, PromptBody, TokensBody

JSON = "application/json"


@frozen
class Operation:
    """What a client sends to one method of one path, and what comes back when it goes well."""

    summary: str
    answer: Schema
    body: tuple[type, ...] = ()
    """The forms that it may have."""
    media: str = JSON
    streams: bool = False
    """The body may ask for server-sent events instead."""
    is_open: bool = False
    """Needs no key even where there are keys."""
    parameter: str | None = None
    """A part of the path."""
    also: tuple[int, ...] = ()
    """Other statuses with the same shape."""


_TEXT: Schema = {"type": "string"}

OPERATIONS: dict[str, dict[str, Operation]] = {
    "/v1/completions": {
        "post": Operation("Go on with a text", reference("Completion"), (CompletionBody,), streams=True),
    },
    "/v1/chat/completions": {
        "post": Operation("Answer a conversation", reference("ChatCompletion"), (ChatBody,), streams=True),
    },
    "/v1/embeddings": {"post": Operation("Texts to vectors", reference("Embeddings"), (EmbeddingBody,))},
    "/tokenize": {
        "post": Operation("Text to token ids", reference("Tokens"), (ContentBody, PromptBody, ConversationBody)),
    },
    "/detokenize": {"post": Operation("Token ids to text", reference("Text"), (TokensBody,))},
    "/apply-template": {
        "post": Operation("The prompt that a conversation becomes", reference("Prompt"), (ConversationFields,)),
    },
    "/tokenizer_info": {"get": Operation("The tokenizer's own settings", reference("TokenizerInfo"))},
    "/v1/models": {"get": Operation("The served model, as a list", reference("ModelList"))},
    "/v1/models/{model}": {"get": Operation("The served model", reference("Model"), parameter="model")},
    "/healthz": {"get": Operation("Whether the server lives", reference("Status"), is_open=True)},
    "/readyz": {
        "get": Operation("Whether it would take a request", reference("Status"), is_open=True, also=(503,)),
    },
    "/metrics": {"get": Operation("Prometheus metrics", _TEXT, media="text/plain")},
    "/openapi.json": {"get": Operation("This document", {"type": "object"})},
}
"""Path -> method -> what it does."""

_KEYS: dict[str, Schema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


@cache
def openapi_document(version: str) -> bytes:
    """The document as JSON, made once (22 ms). `version` is the server's."""
    schemas = dict(ANSWERS)
    for methods in OPERATIONS.values():
        for operation in methods.values():
            for body in operation.body:
                schemas |= body_schemas(body)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "SLIM",
            "version": version,
            "description": "A local model server behind OpenAI's API. A null field counts as absent. Names that nobody "
            "knows are ignored; those of other servers that would change the answer are refused by name.",
        },
        "paths": {
            path: {method: _operation(operation) for method, operation in methods.items()}
            for path, methods in OPERATIONS.items()
        },
        "components": {"schemas": schemas, "securitySchemes": _KEYS},
    }
    return compact(document).encode("ascii")


def _operation(operation: Operation) -> dict[str, Any]:
    good = {operation.media: {"schema": operation.answer}}
    if operation.streams:
        good["text/event-stream"] = {"schema": _TEXT}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "It went well", "content": good},
            **{str(status): {"description": "Not now", "content": good} for status in operation.also},
            "default": {"description": "An error", "content": {JSON: {"schema": reference("Error")}}},
        },
        # Keys are up to the server's settings: an empty requirement means that none may be needed.
        "security": [{}] if operation.is_open else [{}, *({name: []} for name in _KEYS)],
    }
    forms = [reference(body.__name__) for body in operation.body]
    if forms:
        schema = {"anyOf": forms} if len(forms) > 1 else forms[0]
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    if operation.parameter is not None:
        described["parameters"] = [{"name": operation.parameter, "in": "path", "required": True, "schema": _TEXT}]
    return described
