"""The official Python client, newest and 1.x: the same program for both."""

import asyncio
import json

import openai
from common import MODEL, QUESTION, UNKNOWN_TOKEN, URL, WEATHER, WEATHER_TOOL, City, finding, report
from openai import AsyncOpenAI, OpenAI

client = OpenAI(base_url=URL + "/v1", api_key="unused", max_retries=0)
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 24}
LONGER = GREEDY | {"max_tokens": 100}


@finding
def version():
    return openai.__version__


@finding
def plain():
    answer = client.chat.completions.create(messages=QUESTION, **GREEDY)
    return {"body": answer.to_dict(), "request_id": answer._request_id}


@finding
def streamed():
    usage = {"include_usage": True}
    stream = client.chat.completions.create(messages=QUESTION, stream=True, stream_options=usage, **GREEDY)
    return [chunk.to_dict() for chunk in stream]


@finding
def stream_helper():
    """The client's own assembly of the events. It raises on an answer that its limit cuts, so this one has a form."""
    with client.chat.completions.stream(messages=QUESTION, response_format=City, **LONGER) as stream:
        kinds = [event.type for event in stream]
        return {"kinds": kinds, "parsed": stream.get_final_completion().choices[0].message.parsed.model_dump()}


@finding
def several_choices():
    answer = client.chat.completions.create(messages=QUESTION, n=3, **GREEDY | {"temperature": 1.5, "seed": 1})
    return [choice.to_dict() for choice in answer.choices]


@finding
def logprobs():
    answer = client.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=3, **GREEDY)
    return answer.to_dict()


@finding
def streamed_logprobs():
    stream = client.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=3, stream=True, **GREEDY)
    parts = [chunk.choices[0].logprobs for chunk in stream if chunk.choices]
    return [token.to_dict() for part in parts if part is not None for token in part.content or []]


def call(messages, **options):
    return client.chat.completions.create(messages=messages, tools=[WEATHER_TOOL], **LONGER | options)


@finding
def tool_call():
    """A call, its result, and the model's answer to that."""
    answer = call(WEATHER, tool_choice="required", parallel_tool_calls=False)
    (made,) = answer.choices[0].message.tool_calls
    result = {"role": "tool", "tool_call_id": made.id, "content": json.dumps({"degrees": 21})}
    after = call([*WEATHER, answer.choices[0].message.to_dict(), result], tool_choice="none")
    return {"call": answer.to_dict(), "after": after.to_dict()}


@finding
def named_tool_call():
    return call(WEATHER, tool_choice={"type": "function", "function": {"name": "get_weather"}}).to_dict()


@finding
def streamed_tool_call():
    stream = call(WEATHER, tool_choice="required", parallel_tool_calls=False, stream=True)
    return [chunk.to_dict() for chunk in stream]


@finding
def parsed_tool_call():
    """`pydantic_function_tool` and `parse`: the client checks the arguments itself."""
    answer = client.chat.completions.parse(
        messages=WEATHER,
        tools=[openai.pydantic_function_tool(City)],
        tool_choice="required",
        **LONGER,
    )
    return [made.function.parsed_arguments.model_dump() for made in answer.choices[0].message.tool_calls]


@finding
def parsed():
    answer = client.chat.completions.parse(messages=QUESTION, response_format=City, **LONGER)
    return answer.choices[0].message.parsed.model_dump()


@finding
def json_object():
    object_ = {"type": "json_object"}
    messages = [{"role": "user", "content": "A JSON object with the key a and the value 1."}]
    answer = client.chat.completions.create(messages=messages, response_format=object_, **GREEDY | {"max_tokens": 200})
    return answer.choices[0].to_dict()


@finding
def wrong_field():
    return client.chat.completions.create(messages=QUESTION, logit_bias=UNKNOWN_TOKEN, **GREEDY).to_dict()


@finding
def wrong_value():
    return client.chat.completions.create(messages=QUESTION, **GREEDY | {"temperature": 9}).to_dict()


@finding
def wrong_schema():
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return client.chat.completions.create(messages=QUESTION, response_format=form, **GREEDY).to_dict()


@finding
def missing_route():
    return client.moderations.create(input="a").to_dict()


@finding
def models():
    listed = client.models.list().data
    return {"listed": [model.id for model in listed], "retrieved": client.models.retrieve(listed[0].id).id}


@finding
def completion():
    answer = client.completions.create(prompt="One, two,", echo=True, logprobs=2, **GREEDY | {"max_tokens": 4})
    return answer.to_dict()


@finding
def concurrent_and_cancelled():
    """Eight streams at once, each left after its third event."""

    async def one(client):
        stream = await client.chat.completions.create(messages=QUESTION, stream=True, **GREEDY | {"max_tokens": 500})
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 3:
                break
        await stream.close()
        return seen

    async def all_of_them():
        async with AsyncOpenAI(base_url=URL + "/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(8)))

    return asyncio.run(all_of_them())


report()
