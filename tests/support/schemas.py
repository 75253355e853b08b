"""JSON Schemas for tests, the same in every run: over 200 that answers can follow, over 60 that must be refused.

Answers to `supported` end by themselves: their strings, lists and open objects are bounded.
"""

import random

TEXT = {"type": "string", "maxLength": 12}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def supported():
    """Name -> schema."""
    schemas = {}
    for group in (numbers, strings, values, arrays, objects, combinations, references, annotated, realistic, drawn):
        for number, schema in enumerate(group()):
            schemas[f"{group.__name__}-{number}"] = schema
    return schemas


def unsupported():
    """Name -> a schema and the path in it of what can't be honoured."""
    cases = [*keywords_at_the_root(), *keywords_inside(), *wrong_values(), *wrong_references(), *contradictions()]
    return {f"{number}-{path or 'root'}": (schema, path) for number, (schema, path) in enumerate(cases)}


def closed(required=None, **properties):
    """An object of exactly these properties."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def listed(items, most=3):
    return {"type": "array", "items": items, "maxItems": most}


def numbers():
    for kind in ("integer", "number"):
        for lowest, highest in ((0, 9), (-5, 5), (-300, -20), (17, 1024), (0, 0), (-1, 0)):
            yield {"type": kind, "minimum": lowest, "maximum": highest}
            if highest - lowest > 1:
                yield {"type": kind, "exclusiveMinimum": lowest, "exclusiveMaximum": highest}
        yield {"type": kind, "minimum": 3}
        yield {"type": kind, "maximum": -3}
        yield {"type": kind, "exclusiveMinimum": 3, "maximum": 50}
        yield {"type": kind, "multipleOf": 5, "minimum": 0, "maximum": 1000}
        yield {"type": kind, "multipleOf": 7, "minimum": -70, "maximum": 70}
    yield {"type": "number", "minimum": 0.25, "maximum": 0.75}
    yield {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    yield {"type": "number", "minimum": -2.82, "exclusiveMaximum": -2}
    yield {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 20}
    yield {"type": "number", "minimum": 1.5, "exclusiveMinimum": 1.5, "maximum": 1.75}
    yield {"type": "integer", "minimum": 0.5, "maximum": 3.5}
    yield {"type": "integer", "minimum": 2**53 - 3, "maximum": 2**53}


def strings():
    for shortest, longest in ((0, 0), (0, 5), (1, 1), (3, 8), (20, 24)):
        yield {"type": "string", "minLength": shortest, "maxLength": longest}
    for pattern in PATTERNS:
        yield {"type": "string", "pattern": pattern, "maxLength": 24}
    for name in ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"):
        yield {"type": "string", "format": name}
    yield {"type": "string", "format": "date", "pattern": "^19"}
    yield {"type": "string", "format": "email", "maxLength": 16}
    yield {"type": "string", "format": "an unknown one", "maxLength": 5}
    yield {"type": "string", "minLength": 2, "pattern": "^[ab]*$", "maxLength": 6}


PATTERNS = (
    *(
        "a",
        "^a",
        "a$",
        "^a$",
        "^a|b$",
        "^(a|b)*$",
        "(^a|b)c",
        "^[A-Z]{2}[0-9]{3}$",
        "^\\d{1,4}$",
        "^\\w+$",
        "^[^a-z]{2,5}$",
    ),
    *("^(?:red|green|blue)$", "^a?b+c*$", "x{2,3}", "^.{3,5}$", "^\\+?[0-9 ()-]{5,12}$", "^#[0-9a-fA-F]{6}$", "^$", ""),
    *("^[\\w.-]+@[\\w-]+\\.[a-z]{2,4}$", "^(0|[1-9][0-9]*)\\.[0-9]{2}$", "^\\/[a-z/]*$", "^v\\d+(\\.\\d+){0,2}$"),
    *(
        "^[\\u00e4\\u00f6\\u00fc]{1,3}$",
        "^[^\\x00-\\x1f\\x7f]{1,4}$",
        "^[\\x00-~]{2,3}$",
        "^\\t?a\\n?$",
        "^hello there indeed\\\\!$",
        "^\\p{Lu}",
    ),
)
"""The last is not one of Python's; the validator leaves it out."""


def values():
    for value in (
        "a",
        "",
        'quo"te',
        "back\\slash",
        "line\nbreak\ttab",
        "snow ☃ 😀",
        0,
        -7,
        3.25,
        1e3,
        True,
        False,
        None,
    ):
        yield {"const": value}
    yield {"const": [1, "two", [None]]}
    yield {"const": {"a": {"b": [1, 2]}, "c": ""}}
    yield {"enum": ["red", "green", "blue"]}
    yield {"enum": ["a", "ab", "abc"]}
    yield {"enum": [1, 2.5, "x", None, True, [], {}]}
    yield {"type": "string", "enum": ["yes", "no", 3]}
    yield {"type": "integer", "enum": [1, 2, 3, "four"]}
    yield {"enum": [f"value {number}" for number in range(300)]}
    yield {"enum": ["one", "three", "eleven"], "minLength": 4}
    for kind in ("boolean", "null"):
        yield {"type": kind}
    yield {"type": ["boolean", "null"]}
    yield {"type": ["integer", "null"], "minimum": 0, "maximum": 9}
    yield {"type": ["string", "integer"], "maxLength": 4, "minimum": 0, "maximum": 20}


def arrays():
    for fewest, most in ((0, 0), (0, 2), (1, 1), (2, 4), (3, 3)):
        yield {"type": "array", "items": SMALL, "minItems": fewest, "maxItems": most}
    for items in (TEXT, {"type": "boolean"}, {"enum": ["x", "y"]}, listed(SMALL, 2), closed(a=SMALL), {"type": "null"}):
        yield listed(items)
    yield {"type": "array", "prefixItems": [SMALL, TEXT], "items": False}
    yield {"type": "array", "prefixItems": [SMALL, TEXT], "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": [SMALL], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}
    yield {"type": "array", "items": {"type": "boolean"}, "prefixItems": [SMALL, {"type": "null"}], "maxItems": 3}
    yield {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 2}
    yield {"type": "array", "items": False}
    yield {"type": "array", "items": True, "maxItems": 1}
    yield {"type": "array", "items": SMALL, "maxItems": 2, "uniqueItems": False}


def objects():
    yield closed()
    yield closed(a=SMALL)
    yield closed(a=SMALL, b=TEXT, c={"type": "boolean"})
    yield closed([], a=SMALL, b=TEXT, c={"type": "null"})
    yield closed(["b"], a=SMALL, b=TEXT, c={"type": "null"})
    yield closed(a=closed(b=closed(c=closed(d={"const": "deep"}))))
    yield closed(**{"with space": SMALL, 'quo"te': SMALL, "new\nline": SMALL, "\u2028": SMALL, "😀": SMALL, "": SMALL})
    yield closed(**{f"p{number}": {"type": "boolean"} for number in range(60)})
    yield closed([], **{f"p{number}": {"type": "boolean"} for number in range(60)})
    yield {"type": "object", "additionalProperties": SMALL, "maxProperties": 2}
    yield {"type": "object", "additionalProperties": SMALL, "minProperties": 1, "maxProperties": 2}
    yield {"type": "object", "additionalProperties": False, "maxProperties": 0}
    yield {"type": "object", "properties": {"a": SMALL}, "required": ["a"], "maxProperties": 2}
    yield {"type": "object", "properties": {"a": SMALL}, "additionalProperties": TEXT}
    yield {"type": "object", "properties": {"a": SMALL, "ab": TEXT}}
    yield {"type": "object", "required": ["x"], "additionalProperties": SMALL, "maxProperties": 1}
    yield {"type": "object", "required": ["x", "y"], "properties": {"y": TEXT}, "maxProperties": 2}
    yield {"type": "object", "patternProperties": {"^n[0-9]$": SMALL}, "additionalProperties": False}
    yield {
        "type": "object",
        "patternProperties": {"^a": SMALL, "^b": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 3,
    }
    yield {
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {"^x": SMALL},
        "properties": {"x1": {"minimum": 5}, "y": TEXT},
        "required": ["x1"],
    }
    yield {**closed([], a=SMALL, b=SMALL, c=SMALL), "minProperties": 1}
    yield {**closed([], a=SMALL, b=SMALL, c=SMALL), "maxProperties": 1}
    yield {**closed(["a"], a=SMALL, b=SMALL), "minProperties": 2}
    yield {
        "properties": {"a": SMALL},
        "type": "object",
        "additionalProperties": True,
        "maxProperties": 1,
        "required": ["a"],
    }
    yield {"type": "object", "propertyOrder": ["ignored"], "maxProperties": 1}


def combinations():
    yield {"anyOf": [SMALL, TEXT]}
    yield {"anyOf": [closed(a=SMALL), closed(b=TEXT)]}
    yield {"anyOf": [{"type": "null"}, listed(SMALL)]}
    yield {"anyOf": [{"minimum": 3}, {"maximum": -3}], "type": "integer"}
    yield {"anyOf": [False, SMALL]}
    yield {"oneOf": [SMALL, TEXT]}
    yield {"oneOf": [closed(kind={"const": "a"}, a=SMALL), closed(kind={"const": "b"}, b=TEXT)]}
    yield {"oneOf": [{"const": "x"}, {"const": "y"}, {"type": "null"}]}
    yield {"oneOf": [{"type": "object", "maxProperties": 0}, listed(SMALL), {"type": "boolean"}]}
    yield {"oneOf": [closed(kind={"enum": ["a", "b"]}), closed(kind={"enum": ["c"]})]}
    yield {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 7}]}
    yield {"allOf": [{"type": "string", "maxLength": 9}, {"pattern": "^a"}, {"pattern": "z$"}]}
    yield {"allOf": [{"type": "object", "properties": {"a": SMALL}, "required": ["a"]}, {"maxProperties": 1}]}
    yield {
        "type": "object",
        "allOf": [
            {"properties": {"a": SMALL}, "required": ["a"]},
            {"properties": {"b": TEXT}, "required": ["b"]},
        ],
        "maxProperties": 2,
    }
    yield {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 0, "maximum": 200}
    yield {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]}
    yield {
        "type": "object",
        "properties": {"a": SMALL},
        "required": ["a"],
        "maxProperties": 1,
        "anyOf": [{"required": ["a"]}],
    }
    yield {
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": SMALL, "b": TEXT},
        "type": "object",
    }
    yield {
        "patternProperties": {"^x": SMALL},
        "anyOf": [{"required": ["x1"]}, {"required": ["x2"]}],
        "additionalProperties": False,
        "type": "object",
        "maxProperties": 3,
    }
    yield {"anyOf": [{"anyOf": [SMALL, {"type": "null"}]}, {"allOf": [TEXT, {"minLength": 2}]}]}
    yield {"const": 3, "type": "integer", "minimum": 1}
    yield {"exclusiveMinimum": 0, "allOf": [{"type": "number", "maximum": 0.5}]}
    yield {
        "type": "array",
        "prefixItems": [SMALL],
        "anyOf": [{"minItems": 1}],
        "items": {"type": "null"},
        "maxItems": 3,
    }


def references():
    yield {"$ref": "#/$defs/a", "$defs": {"a": SMALL}}
    yield {"$ref": "#/definitions/a", "definitions": {"a": TEXT}}
    yield closed(a={"$ref": "#/$defs/c"}) | {"$defs": {"c": {"enum": ["r", "g"]}}}
    yield closed(a=SMALL, b={"$ref": "#/properties/a"})
    yield {
        **closed(a={"$ref": "#/$defs/x"}),
        "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/z"}, "z": SMALL},
    }
    yield {"$ref": "#/$defs/a~1b~0c%20d", "$defs": {"a/b~c d": SMALL}}
    yield {"prefixItems": [SMALL, {"$ref": "#/prefixItems/0"}], "type": "array", "items": False, "minItems": 2}
    yield {"$ref": "#/$defs/a", "minimum": 50, "$defs": {"a": SMALL}}
    yield {"$defs": {"a": {"type": "string", "maxLength": 5}}, "allOf": [{"$ref": "#/$defs/a"}, {"minLength": 2}]}
    yield {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": SMALL, "b": {"type": "null"}}}
    node = {**closed(["v"], v=SMALL, next={"$ref": "#/$defs/node"})}
    yield {"$ref": "#/$defs/node", "$defs": {"node": node}}
    yield {"$ref": "#/$defs/tree", "$defs": {"tree": closed(v=SMALL, children=listed({"$ref": "#/$defs/tree"}, 2))}}
    yield closed(["v"], v=SMALL, again={"$ref": "#"})
    yield {"anyOf": [SMALL, listed({"$ref": "#"}, 2)]}
    yield {
        "$ref": "#/$defs/even",
        "$defs": {"even": closed([], odd={"$ref": "#/$defs/odd"}), "odd": closed([], even={"$ref": "#/$defs/even"})},
    }
    yield closed(a={"$ref": "#/$defs/used"}) | {"$defs": {"used": SMALL, "unused": {"not": {}}}}
    yield {"components": {"schemas": {"a": SMALL}}, "$ref": "#/components/schemas/a"}


def annotated():
    yield {"$schema": DRAFT, "$id": "https://example.com/a", "title": "T", "description": "D", "$comment": "", **SMALL}
    yield {
        **TEXT,
        "default": 3,
        "examples": [1],
        "deprecated": True,
        "readOnly": True,
        "writeOnly": False,
        "$comment": "c",
    }
    yield {**SMALL, "x-order": 1, "nullable": True, "discriminator": {}, "unknown": {"not": 3}}
    yield closed(a={"$id": "inner", "$anchor": "here", **SMALL})
    yield {**TEXT, "contentEncoding": "base64", "contentMediaType": "text/plain", "$vocabulary": {}}


def realistic():
    yield closed(
        name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 130}, email={"type": "string", "format": "email"}
    )
    yield closed(
        city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": "integer", "minimum": 1, "maximum": 14}
    )
    yield closed(
        id={"type": "string", "format": "uuid"},
        created={"type": "string", "format": "date-time"},
        lines=listed(closed(sku={"type": "string", "pattern": "^[A-Z]{3}-\\d{4}$"}, count=SMALL)),
    )
    yield closed(
        ["title", "steps"],
        title=TEXT,
        steps={"type": "array", "items": closed(text=TEXT, minutes=SMALL), "minItems": 1, "maxItems": 3},
        tags=listed({"enum": ["quick", "vegan", "spicy"]}),
        source={"anyOf": [{"type": "null"}, {"type": "string", "format": "uri"}]},
    )
    yield closed(
        shape={
            "oneOf": [
                closed(kind={"const": "circle"}, radius=SMALL),
                closed(kind={"const": "box"}, width=SMALL, height=SMALL),
            ]
        }
    )
    yield closed(answer={"type": "boolean"}, reason=TEXT, confidence={"type": "number", "minimum": 0, "maximum": 1})
    yield {
        "$defs": {"Person": closed(["name"], name=TEXT, friends=listed({"$ref": "#/$defs/Person"}, 2))},
        **closed(people=listed({"$ref": "#/$defs/Person"}, 2)),
    }


def drawn(count=80):
    """Schemas that a seeded generator puts together from all of the above."""
    draw = random.Random(2020)
    leaves = [schema for group in (numbers, values, arrays) for schema in group()]
    leaves += [schema for schema in strings() if "\\p" not in schema.get("pattern", "")]
    return [_draw_object(draw, leaves, 3) for _ in range(count)]


def _draw_object(draw, leaves, depth):
    names = [f"{draw.choice('abcxyz')}{number}" for number in range(draw.randint(1, 4))]
    properties = {name: _draw(draw, leaves, depth - 1) for name in names}
    return closed([name for name in names if draw.random() < 0.7], **properties)


def _draw(draw, leaves, depth):
    shape = draw.choice(("leaf", "leaf", "object", "list", "any", "nullable")) if depth else "leaf"
    if shape == "object":
        return _draw_object(draw, leaves, depth)
    if shape == "list":
        return listed(_draw(draw, leaves, depth - 1), draw.randint(1, 3))
    if shape == "any":
        return {"anyOf": [_draw(draw, leaves, depth - 1), _draw(draw, leaves, depth - 1)]}
    if shape == "nullable":
        return {"anyOf": [{"type": "null"}, _draw(draw, leaves, depth - 1)]}
    return draw.choice(leaves)


REFUSED_KEYWORDS = {
    "not": {"const": 1},
    "if": {"const": 1},
    "then": {},
    "else": {},
    "contains": {"const": 1},
    "minContains": 2,
    "maxContains": 2,
    "uniqueItems": True,
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "propertyNames": {"maxLength": 3},
    "additionalItems": False,
    "$dynamicRef": "#node",
    "$recursiveRef": "#",
}


def keywords_at_the_root():
    for keyword, value in REFUSED_KEYWORDS.items():
        yield {"type": "object", keyword: value}, keyword


def keywords_inside():
    bad = {"not": {"type": "null"}}
    yield closed(a=bad), "properties.a.not"
    yield closed(a=listed(closed(b=bad))), "properties.a.items.properties.b.not"
    yield {"anyOf": [SMALL, bad]}, "anyOf[1].not"
    yield {"oneOf": [bad]}, "oneOf[0].not"
    yield {"allOf": [{"allOf": [bad]}]}, "allOf[0].allOf[0].not"
    yield {"type": "array", "prefixItems": [SMALL, bad]}, "prefixItems[1].not"
    yield {"additionalProperties": bad}, "additionalProperties.not"
    yield {"patternProperties": {"^a": bad}}, "patternProperties['^a'].not"
    yield {"$ref": "#/$defs/a", "$defs": {"a": closed(b=bad)}}, "$defs.a.properties.b.not"
    yield closed(**{"odd name": bad}), "properties['odd name'].not"


def wrong_values():
    yield {"type": "hiccup"}, "type"
    yield {"type": []}, "type"
    yield {"type": ["string", 3]}, "type"
    yield {"type": {}}, "type"
    yield {"enum": []}, "enum"
    yield {"enum": "a"}, "enum"
    yield {"anyOf": []}, "anyOf"
    yield {"allOf": {}}, "allOf"
    yield {"oneOf": [3]}, "oneOf[0]"
    yield {"properties": []}, "properties"
    yield {"properties": {"a": 3}}, "properties.a"
    yield {"items": [SMALL, TEXT]}, "items"
    yield {"items": 3}, "items"
    yield {"required": "a"}, "required"
    yield {"required": ["a", 3]}, "required"
    yield {"minimum": "3"}, "minimum"
    yield {"minimum": True}, "minimum"
    yield {"maximum": 1e300}, "maximum"
    yield {"exclusiveMinimum": True, "minimum": 3}, "exclusiveMinimum"
    yield {"multipleOf": 0}, "multipleOf"
    yield {"multipleOf": -2}, "multipleOf"
    yield {"multipleOf": 1_000_003}, "multipleOf"
    yield {"allOf": [{"multipleOf": 251}, {"multipleOf": 257}, {"multipleOf": 263}]}, "allOf[1].multipleOf"
    yield {"minLength": -1}, "minLength"
    yield {"minLength": 1.5}, "minLength"
    yield {"maxItems": "3"}, "maxItems"
    yield {"maxProperties": True}, "maxProperties"
    yield {"type": "object", "minProperties": 2}, "minProperties"
    yield {**closed([], a=SMALL, b=SMALL), "minProperties": 2}, "minProperties"
    yield {"pattern": 3}, "pattern"
    for pattern in (
        "(?=x)",
        "(?<!x)y",
        "\\bword",
        "^+[a-z]$",
        "^{2}x$",
        "a|*",
        "[a&&b]",
        "[[a]]",
        "a\x01",
        "\\v",
        "x\\",
    ):
        yield {"type": "string", "pattern": pattern}, "pattern"
    yield {"patternProperties": {"(?!x)": {}}}, "patternProperties['(?!x)']"
    yield {"format": 3}, "format"
    yield {"const": "\x01"}, "const"
    yield {"const": 2**53 + 1}, "const"
    yield {"enum": ["\ud800"]}, "enum"
    yield 123, ""
    yield False, ""


def wrong_references():
    yield {"$ref": "#/$defs/missing"}, "$ref"
    yield {"$ref": "http://127.0.0.1:9/schema.json"}, "$ref"
    yield {"$ref": "other.json#/a"}, "$ref"
    yield {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}, "$ref"
    yield {"$ref": 3}, "$ref"
    yield {**closed(a={"$id": "inner", "$ref": "#/$defs/x"}), "$defs": {"x": {}}}, "properties.a.$ref"
    yield {"$ref": "#/$defs/a/anyOf/2", "$defs": {"a": {"anyOf": [{}, {}]}}}, "$ref"


def contradictions():
    """What only the compiler finds; it knows no path."""
    yield {"type": "integer", "minimum": 5, "maximum": 3}, ""
    yield {"type": "string", "minLength": 5, "maxLength": 3}, ""
    yield {"type": "string", "const": 3}, ""
    yield closed(a={"type": "integer", "minimum": 5, "maximum": 3}), ""
    yield {"allOf": [{"type": "string"}, {"type": "integer"}]}, ""
    yield {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, ""
    yield {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, ""
    yield {"type": "string", "pattern": "["}, ""
    yield {"type": "string", "pattern": "(a)\\1"}, ""
    yield {"type": "array", "minItems": 3, "maxItems": 2}, ""
    yield {"patternProperties": {"^a": {}, "b$": {}}}, ""
