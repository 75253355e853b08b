"""JSON Schemas of the answers, for the OpenAPI document. Tests hold real answers against them. Knows no route."""

from .schemas import Schema, reference

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number", "minimum": 0}
_LOGPROB: Schema = {"type": "number", "maximum": 0}


def _object(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object with exactly these keys, of which some may be missing."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _answer(name: str, choice: Schema) -> Schema:
    return _object(
        {
            "id": _TEXT,
            "object": {"const": name},
            "created": _COUNT,
            "model": _TEXT,
            "choices": _list(choice),
            "usage": reference("Usage"),
            "timings": reference("Timings"),
        }
    )


_STAGES = ("prompt", "predicted")
_TIMES = {f"{stage}_{name}": _NUMBER for stage in _STAGES for name in ("ms", "per_token_ms", "per_second")}
_TOKEN = {"token": _TEXT, "logprob": _LOGPROB, "bytes": _list(_COUNT)}
_VECTOR: Schema = {"anyOf": [_TEXT, _list({"type": "number"})]}
_PIECE: Schema = {"anyOf": [_TEXT, _list(_COUNT)]}
_CALL = _object(
    {"id": _TEXT, "type": {"const": "function"}, "function": _object({"name": _TEXT, "arguments": _TEXT})},
)
_MESSAGE = _object(
    {
        "role": {"const": "assistant"},
        "content": _TEXT_OR_NULL,
        "refusal": {"type": "null"},
        "reasoning_content": _TEXT,
        "tool_calls": _list(_CALL),
    },
    optional=("reasoning_content", "tool_calls"),
)

ANSWERS: dict[str, Schema] = {
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": _TEXT_OR_NULL,
                    "code": _TEXT_OR_NULL,
                }
            )
        }
    ),
    "Usage": _object(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        }
    ),
    "Timings": _object(
        {"queue_ms": _NUMBER, "cache_n": _COUNT, "prompt_n": _COUNT, "predicted_n": _COUNT, **_TIMES},
    ),
    "TextLogprobs": _object(
        {
            "tokens": _list(_TEXT),
            "token_logprobs": _list(_or_null(_LOGPROB)),
            "top_logprobs": _list(_or_null({"type": "object", "additionalProperties": _LOGPROB})),
            "text_offset": _list(_COUNT),
        }
    ),
    "ChatLogprobs": _object(
        {
            "content": _list(_object({**_TOKEN, "top_logprobs": _list(_object(_TOKEN))})),
            "refusal": {"type": "null"},
        }
    ),
    "Completion": _answer(
        "text_completion",
        _object(
            {
                "index": _COUNT,
                "text": _TEXT,
                "logprobs": _or_null(reference("TextLogprobs")),
                "finish_reason": {"enum": ["stop", "length"]},
            }
        ),
    ),
    "ChatCompletion": _answer(
        "chat.completion",
        _object(
            {
                "index": _COUNT,
                "message": _MESSAGE,
                "logprobs": _or_null(reference("ChatLogprobs")),
                "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
            }
        ),
    ),
    "Model": _object(
        {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT, "max_model_len": _COUNT},
        optional=("max_model_len",),
    ),
    "ModelList": _object({"object": {"const": "list"}, "data": _list(reference("Model"))}),
    "Embeddings": _object(
        {
            "object": {"const": "list"},
            "data": _list(_object({"object": {"const": "embedding"}, "index": _COUNT, "embedding": _VECTOR})),
            "model": _TEXT,
            "usage": _object({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    "Tokens": {
        "anyOf": [
            _object({"tokens": _list({"anyOf": [_COUNT, _object({"id": _COUNT, "piece": _PIECE})]})}),
            _object(
                {
                    "count": _COUNT,
                    "max_model_len": _COUNT,
                    "tokens": _list(_COUNT),
                    "token_strs": _or_null(_list(_TEXT)),
                }
            ),
        ]
    },
    "Text": _object({"content": _TEXT, "prompt": _TEXT}),
    "Prompt": _object({"prompt": _TEXT}),
    "TokenizerInfo": _object(
        {
            "bos_token": _TEXT_OR_NULL,
            "eos_token": _TEXT_OR_NULL,
            "pad_token": _TEXT_OR_NULL,
            "chat_template": _TEXT_OR_NULL,
            "model_max_length": _COUNT,
        }
    ),
    "Status": _object({"status": _TEXT, "error": _TEXT}, optional=("error",)),
}
