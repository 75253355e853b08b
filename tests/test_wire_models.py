"""The model objects clients list."""

import json

from slim.wire.models import model_list, model_object


def test_a_model_has_openais_fields_and_its_context():
    assert json.loads(model_object("tiny", 1700000000, 2048)) == {
        "id": "tiny",
        "object": "model",
        "created": 1700000000,
        "owned_by": "slim",
        "max_model_len": 2048,
    }


def test_an_unknown_context_is_left_out():
    assert "max_model_len" not in json.loads(model_object("tiny", 1, None))


def test_the_list_holds_the_one_model():
    body = json.loads(model_list("tiny", 1, 2048))
    assert body == {"object": "list", "data": [json.loads(model_object("tiny", 1, 2048))]}


def test_any_model_name_is_written_in_ascii():
    body = model_object('né "\ud83d', 1, None)
    assert body.isascii()
    assert json.loads(body)["id"] == 'né "\ud83d'
