"""The answers of `GET /v1/models` and `GET /v1/models/{model}`. Knows no engine."""

from .render import compact


def model_object(name: str, created: int, context: int | None) -> bytes:
    """One model in OpenAI's shape. `created` is Unix time in seconds, `context` is in tokens, None while unknown."""
    return compact(_model(name, created, context)).encode("ascii")


def model_list(name: str, created: int, context: int | None) -> bytes:
    """The list of the one model that is served. Arguments as for `model_object`."""
    return compact({"object": "list", "data": [_model(name, created, context)]}).encode("ascii")


def _model(name: str, created: int, context: int | None) -> dict[str, object]:
    model: dict[str, object] = {"id": name, "object": "model", "created": created, "owned_by": "slim"}
    if context is not None:
        model["max_model_len"] = context  # vLLM's name; clients read it
    return model
