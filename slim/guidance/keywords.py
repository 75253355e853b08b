"""Which words of JSON Schema 2020-12 are honoured, and which formats: data alone. Knows nothing of how.

What is in neither table is an annotation, and ignored as JSON Schema says.
"""

from collections.abc import Mapping

CORE = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"})
NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
STRINGS = frozenset({"format", "maxLength", "minLength", "pattern"})
ARRAYS = frozenset({"items", "maxItems", "minItems", "prefixItems"})
OBJECTS = frozenset(
    {"additionalProperties", "maxProperties", "minProperties", "patternProperties", "properties", "required"}
)

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

REFUSED: Mapping[str, str] = {
    "$dynamicRef": "Write $ref.",
    "$recursiveRef": "Write $ref.",
    "additionalItems": "Write a tuple as prefixItems, and items for what follows.",
    "contains": "",
    "dependencies": "",
    "dependentRequired": "",
    "dependentSchemas": "",
    "else": "",
    "if": "",
    "maxContains": "",
    "minContains": "",
    "not": "",
    "propertyNames": "Write patternProperties, with additionalProperties false.",
    "then": "",
    "unevaluatedItems": "Write items.",
    "unevaluatedProperties": "Write additionalProperties.",
    "uniqueItems": "",
}
"""Words that restrict a value and can't be honoured, and what to write instead where there is something."""

_DAY = (
    r"(?:\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})-"
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_LEAP_DAY = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_DATE = rf"(?:{_DAY}|{_LEAP_DAY})"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"

FORMATS: Mapping[str, str | None] = {
    "date": rf"^{_DATE}$",
    "date-time": rf"^{_DATE}T{_TIME}$",
    "duration": None,
    "email": None,
    "hostname": None,
    "ipv4": None,
    "ipv6": None,
    "time": rf"^{_TIME}$",
    "uri": None,
    "uuid": None,
}
"""The pattern that stands for a format; None: llguidance's own. Its dates have a 29th of February in every year, and
its times leap seconds at every minute, which validators refuse."""
