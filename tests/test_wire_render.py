"""How JSON leaves the server."""

import json

import pytest

from slim.wire.render import compact


def test_json_is_ascii_without_spaces_or_line_breaks():
    written = compact({"a": ["é\n", "\ud83d"], "b": None})
    assert written == '{"a":["\\u00e9\\n","\\ud83d"],"b":null}'
    assert json.loads(written) == {"a": ["é\n", "\ud83d"], "b": None}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_never_written(number):
    with pytest.raises(ValueError, match="JSON"):
        compact({"a": number})
