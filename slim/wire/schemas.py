"""From the attrs classes of request bodies to JSON Schema: types, bounds, defaults and descriptions. Knows no endpoint.

It reads what the strict converter reads, so that the documentation can't say another thing than the server does.
"""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from .convert import Items, Range, Reader, marks, without_none

Schema = dict[str, Any]

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number"}


def body_schemas(cls: type) -> dict[str, Schema]:
    """The schema of a body's class and of every class in it, by class name."""
    found = {cls.__name__: _class_schema(cls)}
    for attribute in attrs.fields(cls):
        for inner in _classes(attribute.type):
            found |= body_schemas(inner)
    return found


def reference(name: str) -> Schema:
    """Where OpenAPI keeps the schema of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _class_schema(cls: type) -> Schema:
    fields = attrs.fields(cls)
    schema: Schema = {
        "type": "object",
        "description": " ".join((cls.__doc__ or "").split()),
        "properties": {attribute.name: _field_schema(attribute) for attribute in fields},
    }
    required = [attribute.name for attribute in fields if attribute.default is attrs.NOTHING]
    return schema | ({"required": required} if required else {})


def _field_schema(attribute: "attrs.Attribute[Any]") -> Schema:
    """Null stands for an absent field, so every field that isn't required takes it."""
    wanted: Any = attribute.type
    schema = _type_schema(wanted)
    if attribute.default is not attrs.NOTHING:
        schema = _or_null(schema)
    descriptions = marks(wanted, str)
    if descriptions:
        schema["description"] = descriptions[0]
    default = _json_default(attribute.default)
    if default is not None:
        schema["default"] = default
    return schema


def _or_null(schema: Schema) -> Schema:
    kinds = schema.get("type")
    if kinds == "null":
        return schema
    if kinds is not None:
        return schema | {"type": [kinds, "null"] if isinstance(kinds, str) else [*kinds, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _json_default(value: Any) -> Any:
    if isinstance(value, tuple | frozenset):
        return list(value)
    return value if isinstance(value, str | bool | int | float) else None


def _type_schema(wanted: Any) -> Schema:
    for reader in marks(wanted, Reader):
        return dict(reader.schema)
    for items in marks(wanted, Items):
        return _type_schema(get_args(wanted)[0]) | {"minItems": items.low, "maxItems": items.high}
    ranges = marks(wanted, Range)
    if get_origin(wanted) is Annotated:
        wanted = get_args(wanted)[0]
    wanted = without_none(wanted)
    if get_origin(wanted) is Annotated:
        return _type_schema(wanted)
    if get_origin(wanted) is Literal:
        return {"enum": list(get_args(wanted))}
    if get_origin(wanted) is tuple:
        return {"type": "array", "items": _type_schema(get_args(wanted)[0])}
    if attrs.has(wanted):
        return reference(wanted.__name__)
    if wanted not in (int, float):
        return {"type": _PLAIN[wanted]}
    bounds = ranges[0] if ranges else Range()
    return {"type": _PLAIN[wanted], "minimum": bounds.low, "maximum": bounds.high}


def _classes(wanted: Any) -> Iterator[type]:
    """The attrs classes in a type, but for what a reader makes of other JSON."""
    if marks(wanted, Reader):
        return
    if get_origin(wanted) in (Annotated, Union, types.UnionType, tuple):
        for inner in get_args(wanted):
            yield from _classes(inner)
    elif isinstance(wanted, type) and attrs.has(wanted):
        yield wanted
