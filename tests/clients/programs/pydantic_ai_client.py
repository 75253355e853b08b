"""pydantic-ai agents over this server."""

from typing import Annotated

from common import MODEL, QUESTION, UNKNOWN_TOKEN, URL, WEATHER, City, finding, report
from openai import AsyncOpenAI
from pydantic import Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=URL + "/v1", api_key="unused", max_retries=0))
model = OpenAIChatModel(MODEL, provider=provider)
SETTINGS = {"temperature": 0, "max_tokens": 100}
ASKED = QUESTION[0]["content"]


def agent(**options):
    return Agent(model, model_settings={**SETTINGS, **options.pop("settings", {})}, retries=0, **options)


def usage(result):
    return {"input": result.usage.input_tokens, "output": result.usage.output_tokens}


@finding
def plain():
    result = agent().run_sync(ASKED)
    return {"text": result.output, "usage": usage(result)}


@finding
def streamed():
    result = agent().run_stream_sync(ASKED)
    text = "".join(result.stream_text(delta=True))
    return {"text": text, "usage": usage(result)}


@finding
def parsed_by_schema():
    return agent(output_type=NativeOutput(City, strict=True)).run_sync(ASKED).output.model_dump()


@finding
def parsed_by_tool():
    return agent(output_type=ToolOutput(City)).run_sync(ASKED).output.model_dump()


class CallsFirst(AbstractCapability):
    """A call in the first step, words in the next."""

    def get_model_settings(self):
        return lambda context: {"tool_choice": ["get_weather"] if context.run_step == 1 else "none"}


@finding
def tool_call():
    """The agent calls the function and sends its result back."""
    calls = []

    def get_weather(city: Annotated[str, Field(max_length=20)], days: Annotated[int, Field(ge=1, le=7)]) -> str:
        """The weather in a city."""
        calls.append({"city": city, "days": days})
        return "21 degrees"

    result = agent(tools=[get_weather], capabilities=[CallsFirst()]).run_sync(WEATHER[0]["content"])
    return {"calls": calls, "text": result.output, "requests": result.usage.requests}


@finding
def logprobs():
    result = agent(settings={"openai_logprobs": True, "openai_top_logprobs": 2}).run_sync(ASKED)
    return result.response.provider_details["logprobs"]


@finding
def wrong_field():
    return agent(settings={"logit_bias": UNKNOWN_TOKEN}).run_sync(ASKED).output


report()
