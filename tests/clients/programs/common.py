"""What the client programs share: the questions they ask, and one JSON object of findings on standard output.

A program is started with the server's URL as its only argument. Each function marked with `@finding` runs once and its
result is kept under its name. An exception is kept as its class's name and a few of its attributes.
"""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

URL = sys.argv[1]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
UNKNOWN_TOKEN = {"99999999": 5}
"""A `logit_bias` that every client lets through and no server should take."""

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    """A city. Its strings are short: a small model would not end long ones. Other properties are not forbidden."""

    name: str = Field(max_length=20)
    continent: Literal["Africa", "America", "Asia", "Australia", "Europe"]
    millions: int = Field(ge=0, le=40)


findings: dict[str, Any] = {}


def finding(function: Callable[[], Any]) -> Callable[[], Any]:
    """Run it now and keep what it returns, or what it raises."""
    try:
        findings[function.__name__] = function()
    except Exception as error:
        findings[function.__name__] = raised(error)
    return function


def raised(error: Exception) -> dict[str, Any]:
    """The exception as a user of the client sees it."""
    traceback.print_exception(error)
    kept = {name: getattr(error, name, None) for name in ("status_code", "code", "param")}
    return {"raised": type(error).__name__, "text": str(error), **kept}


def report() -> None:
    print(json.dumps(findings))
