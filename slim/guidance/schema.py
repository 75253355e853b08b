"""Reads a JSON Schema (2020-12) and makes the one that llguidance gets: only words that it honours, all checked.

What can't be honoured is refused with the path of its keyword; annotations are left out. Nothing is recursive, so
that no depth of a client's schema can hurt. Knows no tokenizer and calls no llguidance.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from attrs import define

from . import values
from .keywords import ARRAYS, CORE, FORMATS, NUMBERS, OBJECTS, REFUSED, STRINGS, TYPES
from .places import Place

MAX_DEPTH = 64
"""Schemas inside each other."""
MAX_LEVELS = 600
"""Depths of the schema and of all that `$ref` names, together: llguidance compiles them inside each other. A level
needs 4 to 6 kB of stack, so that a thread's 8 MB end at 1,300."""
MAX_MERGED = 10_000
"""Schemas that come to be where a `$ref` stands beside other restrictions, and llguidance merges it with them. They
double with each level in the worst case: 1,000 at the end of a chain take 0.5 s, 16,000 take 4 s."""
MAX_OPTIONAL = 400
"""Optional properties of one object. llguidance's parser holds four items for each, at most 2,000, and works on all of
them at once: 400 make a mask of 1.4 ms."""
MAX_JOINT_PATTERNS = 4
"""Patterns that llguidance may have to intersect. Forty such as `a.{20}b` took minutes and gigabytes."""
MAX_PATTERNS = 30
"""Patterns of one `patternProperties`. llguidance compares each with each."""

ONE = ("additionalProperties", "items")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("patternProperties", "properties")
TOGETHER = {
    keyword: group
    for group in (("properties", "patternProperties", "additionalProperties"), ("prefixItems", "items"))
    for keyword in group
}
"""What llguidance must read without `allOf` and the like in between, in this order."""

DEFINITIONS = "#/$defs/"
ROOT = "#"
HONOURED = CORE | NUMBERS | STRINGS | ARRAYS | OBJECTS


@define
class _Task:
    """A schema that is still to be read."""

    schema: object
    place: Place
    depth: int
    merged: bool
    """llguidance will make one schema of this and others."""
    tree: str
    """The definition that it is in."""
    into: Any
    """The list or object of the result that it belongs in."""
    key: str | int


def honoured(schema: object, param: str) -> dict[str, Any]:
    """The schema as llguidance gets it. Raises InvalidRequest, whose `param` is the path of what can't be honoured."""
    return _Reader(schema, Place(param)).read()


class _Reader:
    def __init__(self, root: object, place: Place) -> None:
        self._root = root
        self._place = place
        self._budget = values.Budget()
        self._names: dict[str, str] = {}
        """`$ref` -> name among the definitions of the result."""
        self._waiting: list[tuple[object, Place, str]] = []
        """Definitions still to be read."""
        self._tasks: list[_Task] = []
        self._joint_patterns = 0
        self._sizes: dict[str, int] = {}
        self._merged: dict[str, list[str]] = {}
        """Definition -> how many schemas are in it, and which definitions are merged into it."""
        self._closable: list[tuple[str, dict[str, Any]]] = []
        """Objects that may be closed, each with the definition that it is in."""

    def read(self) -> dict[str, Any]:
        """Read the root, and all that is referred to."""
        trees: dict[str, Any] = {}
        levels = 0
        self._waiting.append((self._root, self._place, ROOT))
        while self._waiting:
            schema, place, name = self._waiting.pop()
            levels += 1 + self._read_tree(schema, place, trees, name)
            if levels > MAX_LEVELS:
                raise place.error(f"the schema and its definitions have more than {MAX_LEVELS} levels together")
        self._close_objects()
        for name in (name for names in self._merged.values() for name in names):
            if isinstance(trees.get(name), dict) and "pattern" in trees[name]:
                self._count_joint_pattern(self._place)
        if _merged_size(self._sizes, self._merged) > MAX_MERGED:
            raise self._place.error(f"$ref beside other restrictions makes it larger than {MAX_MERGED:,} schemas")
        root = trees.pop(ROOT)
        if root is False:
            raise self._place.error("the schema false allows no answer")
        clean: dict[str, Any] = {} if root is True else root
        return clean | ({"$defs": trees} if trees else {})

    def _read_tree(self, schema: object, place: Place, trees: dict[str, Any], name: str) -> int:
        """Read a schema with all that is inside it, and say how deep it was."""
        deepest = size = 0
        merged = self._merged[name] = []
        self._tasks = [_Task(schema, place, 1, False, name, trees, name)]
        while self._tasks:
            task = self._tasks.pop()
            size += 1
            deepest = max(deepest, task.depth)
            if task.depth > MAX_DEPTH:
                raise task.place.error(f"schemas are nested deeper than {MAX_DEPTH}")
            task.into[task.key] = clean = self._read_schema(task)
            if isinstance(clean, dict) and "$ref" in clean and (task.merged or len(clean) > 1):
                merged.append(clean["$ref"].removeprefix(DEFINITIONS))
        self._sizes[name] = size
        return deepest

    def _read_schema(self, task: "_Task") -> dict[str, Any] | bool:
        schema, place = task.schema, task.place
        self._budget.node(place)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise place.error("must be a schema: an object, true or false")
        if schema is not self._root and "$id" in schema:
            task.place = place = place.embed()
        clean: dict[str, Any] = {}
        for keyword in _ordered(schema):
            value, where = schema[keyword], place.at(keyword)
            if keyword in REFUSED and not (keyword == "uniqueItems" and value is False):
                raise where.error(f"`{keyword}` can't be honoured. {REFUSED[keyword]}".rstrip(". "))
            if keyword in ONE:
                self._one(task, value, where, clean)
            elif keyword in LISTS:
                clean[keyword] = self._list(task, value, where)
            elif keyword in MAPS:
                clean[keyword] = self._map(task, value, where)
            elif keyword == "$ref":
                clean[keyword] = self._reference(value, where)
            elif keyword in LEAVES:
                clean[keyword] = LEAVES[keyword](self._budget, value, where)
        if "properties" in clean or "minProperties" in clean:
            _check_together(clean, place)
        if "exclusiveMinimum" in clean or "exclusiveMaximum" in clean:
            values.write_exclusive_bounds(clean)
        if "format" in clean:
            _write_format(clean)
        if task.merged and "pattern" in clean:
            self._count_joint_pattern(place.at("pattern"))
        if not task.merged and _names_all(clean):
            self._closable.append((task.tree, clean))
        return clean

    def _count_joint_pattern(self, place: Place) -> None:
        self._joint_patterns += 1
        if self._joint_patterns > MAX_JOINT_PATTERNS:
            raise place.error(f"at most {MAX_JOINT_PATTERNS} patterns may be merged with others")

    def _close_objects(self) -> None:
        """An object that names its properties gets no others: a small model invents them until it is cut off.

        JSON Schema leaves it open, and the closed one's answers are valid in it. It stays open where llguidance merges
        it with another schema, which may name other properties.
        """
        any_merged = any(self._merged.values())
        for tree, clean in self._closable:
            if tree == ROOT or not any_merged:
                clean["additionalProperties"] = False

    def _one(self, task: "_Task", value: object, place: Place, clean: dict[str, Any]) -> None:
        keyword = str(place.key)
        if isinstance(value, list | tuple) and keyword == "items":
            raise place.error("must be one schema. Write a tuple as prefixItems, and items for what follows")
        clean[keyword] = value if isinstance(value, bool) else None
        self._tasks.append(_Task(value, place, task.depth + 1, task.merged, task.tree, clean, keyword))

    def _list(self, task: "_Task", value: object, place: Place) -> list[Any]:
        if not isinstance(value, list | tuple) or not value:
            raise place.error("must be a list of schemas, and not empty")
        merged = task.merged
        if place.key != "prefixItems":
            schema: Any = task.schema
            merged = merged or len(HONOURED & schema.keys()) > 1 or (place.key == "allOf" and len(value) > 1)
        made: list[Any] = [None] * len(value)
        self._tasks += (
            _Task(inner, place.at(number), task.depth + 1, merged, task.tree, made, number)
            for number, inner in enumerate(value)
        )
        return made

    def _map(self, task: "_Task", value: object, place: Place) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise place.error("must be an object of schemas")
        patterns = place.key == "patternProperties"
        if patterns and len(value) > MAX_PATTERNS:
            raise place.error(f"must have at most {MAX_PATTERNS} patterns")
        made: dict[str, Any] = {}
        for name, inner in value.items():
            self._budget.text(name, place)
            key = self._budget.pattern(name, place.at(name)) if patterns else name
            made[key] = None
            self._tasks.append(_Task(inner, place.at(name), task.depth + 1, task.merged, task.tree, made, key))
        return made

    def _reference(self, value: object, place: Place) -> str:
        if not isinstance(value, str):
            raise place.error("must be a string")
        if place.embedded:
            raise place.error("$ref can't be honoured inside of a schema with its own $id")
        if value not in self._names:
            schema, where = self._resolve(value, place)
            self._names[value] = f"r{len(self._names)}"
            self._waiting.append((schema, where, self._names[value]))
        return DEFINITIONS + self._names[value]

    def _resolve(self, reference: str, place: Place) -> tuple[object, Place]:
        if reference != "#" and not reference.startswith("#/"):
            raise place.error("$ref can only be honoured within the same schema, such as #/$defs/name")
        schema, where = self._root, self._place
        for part in unquote(reference).split("/")[1:]:
            schema, key = _member(schema, part.replace("~1", "/").replace("~0", "~"))
            if schema is None:
                raise place.error("refers to nothing in the schema")
            where = where.at(key)
            if isinstance(schema, Mapping) and isinstance(schema.get("$id"), str):
                where = where.embed()
        return schema, where


def _merged_size(sizes: Mapping[str, int], merged: Mapping[str, list[str]]) -> int:
    """Schemas in the largest of the definitions, with all that is merged into it. A circle counts once."""
    totals: dict[str, int] = {}
    for start in sizes:
        stack = [(start, iter(merged[start]))] if start not in totals else []
        while stack:
            name, rest = stack[-1]
            total = totals.setdefault(name, sizes[name])
            inner = next(rest, None)
            if inner is None:
                stack.pop()
                if stack:
                    totals[stack[-1][0]] += total
            elif inner in totals:
                totals[name] += totals[inner]
            else:
                stack.append((inner, iter(merged[inner])))
    return max(totals.values())


def _member(value: object, key: str) -> tuple[object, str | int]:
    """What a step of a JSON pointer leads to; None where there is nothing."""
    if isinstance(value, Mapping):
        return value.get(key), key
    if isinstance(value, list | tuple) and key.isascii() and key.isdigit() and len(key) < 7:
        return (value[int(key)] if int(key) < len(value) else None), int(key)
    return None, key


def _ordered(schema: Mapping[str, Any]) -> Iterator[str]:
    """The schema's own order, which is that of an answer's properties, but for TOGETHER; without annotations."""
    done: set[str] = set()
    for keyword in schema:
        if keyword in TOGETHER:
            yield from (name for name in TOGETHER[keyword] if name in schema and name not in done)
            done.update(TOGETHER[keyword])
        elif keyword in HONOURED or keyword in REFUSED:
            yield keyword


def _names_all(clean: Mapping[str, Any]) -> bool:
    """The schema names properties, and nothing in it asks for others."""
    others = ("additionalProperties", "patternProperties", "minProperties", "$ref", "allOf", "anyOf", "oneOf")
    return (
        "properties" in clean
        and not any(keyword in clean for keyword in others)
        and set(clean.get("required", ())) <= clean["properties"].keys()
    )


def _check_together(clean: Mapping[str, Any], place: Place) -> None:
    """What is right in each keyword, and can't be honoured in their sum."""
    required = set(clean.get("required", ()))
    if len(clean.get("properties", {}).keys() - required) > MAX_OPTIONAL:
        raise place.at("properties").error(f"must have at most {MAX_OPTIONAL} that `required` does not name")
    if clean.get("minProperties", 0) > len(required) + 1:
        raise place.at("minProperties").error(
            "minProperties can't be honoured above the length of `required` plus one, because an answer could repeat "
            "a name"
        )


def _write_format(clean: dict[str, Any]) -> None:
    """Leave an unknown format out, and write our pattern for one that has it."""
    name = clean["format"]
    if name not in FORMATS or FORMATS[name] is not None:
        del clean["format"]
    if pattern := FORMATS.get(name):
        clean.setdefault("allOf", []).append({"pattern": pattern})


def _type(budget: values.Budget, value: object, place: Place) -> object:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or any(name not in TYPES for name in names):
        raise place.error(f"must be one of {', '.join(TYPES)}, or a list of these")
    return value


def _constant(budget: values.Budget, value: object, place: Place) -> object:
    budget.value(value, place)
    return value


def _choices(budget: values.Budget, value: object, place: Place) -> object:
    if not isinstance(value, list | tuple) or not value:
        raise place.error("must be a list of values, and not empty")
    budget.value(value, place)
    return value


def _count(budget: values.Budget, value: object, place: Place) -> int:
    return values.count(value, place)


def _bound(budget: values.Budget, value: object, place: Place) -> int | float:
    if isinstance(value, bool) and str(place.key).startswith("exclusive"):
        raise place.error("must be a number, the bound itself, in place of `minimum` or `maximum`")
    return values.bound(value, place)


def _format(budget: values.Budget, value: object, place: Place) -> str | None:
    if not isinstance(value, str):
        raise place.error("must be a string")
    return value


def _required(budget: values.Budget, value: object, place: Place) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise place.error("must be a list of strings")
    for name in value:
        budget.text(name, place)
    return list(value)


LEAVES: Mapping[str, Callable[[values.Budget, object, Place], object]] = {
    "const": _constant,
    "enum": _choices,
    "exclusiveMaximum": _bound,
    "exclusiveMinimum": _bound,
    "format": _format,
    "maximum": _bound,
    "maxItems": _count,
    "maxLength": _count,
    "maxProperties": _count,
    "minimum": _bound,
    "minItems": _count,
    "minLength": _count,
    "minProperties": _count,
    "multipleOf": values.Budget.multiple,
    "pattern": values.Budget.pattern,
    "required": _required,
    "type": _type,
}
