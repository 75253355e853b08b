"""langchain-openai's ChatOpenAI."""

import json

from common import MODEL, QUESTION, UNKNOWN_TOKEN, URL, WEATHER, WEATHER_TOOL, City, finding, report
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

SERVER = {"model": MODEL, "base_url": URL + "/v1", "api_key": "unused", "max_retries": 0}
chat = ChatOpenAI(**SERVER, temperature=0, max_tokens=24)
longer = ChatOpenAI(**SERVER, temperature=0, max_tokens=100)


@finding
def plain():
    return chat.invoke(QUESTION).model_dump()


@finding
def streamed():
    whole = None
    for chunk in chat.stream(QUESTION, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    return whole.model_dump()


@finding
def logprobs():
    return chat.bind(logprobs=True, top_logprobs=3).invoke(QUESTION).model_dump()


@finding
def tool_call():
    asked = HumanMessage(WEATHER[0]["content"])
    bound = longer.bind_tools([WEATHER_TOOL], parallel_tool_calls=False)
    answer = bound.invoke([asked], tool_choice="required")
    (made,) = answer.tool_calls
    result = ToolMessage(json.dumps({"degrees": 21}), tool_call_id=made["id"])
    after = bound.invoke([asked, answer, result], tool_choice="none")
    return {"call": answer.model_dump(), "after": after.model_dump()}


@finding
def streamed_tool_call():
    whole = None
    for chunk in longer.bind_tools([WEATHER_TOOL], tool_choice="get_weather").stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    return whole.model_dump()


@finding
def parsed():
    return longer.with_structured_output(City, method="json_schema").invoke(QUESTION).model_dump()


@finding
def parsed_by_tool():
    return longer.with_structured_output(City, method="function_calling").invoke(QUESTION).model_dump()


@finding
def wrong_field():
    return chat.bind(logit_bias=UNKNOWN_TOKEN).invoke(QUESTION).model_dump()


@finding
def many():
    return [message.model_dump() for message in chat.batch([QUESTION] * 6)]


report()
