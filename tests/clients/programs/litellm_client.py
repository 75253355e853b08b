"""litellm, which speaks to this server as `openai/…` and `text-completion-openai/…`."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched when the module is imported

import litellm
from common import MODEL, QUESTION, UNKNOWN_TOKEN, URL, WEATHER, WEATHER_TOOL, City, finding, report

SERVER = {"model": "openai/" + MODEL, "api_base": URL + "/v1", "api_key": "unused", "num_retries": 0}
GREEDY = {**SERVER, "temperature": 0, "max_tokens": 24}


@finding
def plain():
    return litellm.completion(messages=QUESTION, **GREEDY).model_dump()


@finding
def streamed():
    chunks = list(litellm.completion(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY))
    return litellm.stream_chunk_builder(chunks).model_dump()


@finding
def logprobs():
    return litellm.completion(messages=QUESTION, logprobs=True, top_logprobs=3, **GREEDY).model_dump()


@finding
def tool_call():
    options = {**GREEDY, "max_tokens": 100, "tools": [WEATHER_TOOL]}
    answer = litellm.completion(messages=WEATHER, tool_choice="required", parallel_tool_calls=False, **options)
    message = answer.choices[0].message
    (made,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": made.id, "content": json.dumps({"degrees": 21})}
    after = litellm.completion(messages=[*WEATHER, message.model_dump(), result], tool_choice="none", **options)
    return {"call": answer.model_dump(), "after": after.model_dump()}


@finding
def streamed_tool_call():
    options = {**GREEDY, "max_tokens": 100, "tools": [WEATHER_TOOL], "tool_choice": "required"}
    chunks = list(litellm.completion(messages=WEATHER, stream=True, parallel_tool_calls=False, **options))
    return litellm.stream_chunk_builder(chunks).model_dump()


@finding
def parsed():
    answer = litellm.completion(messages=QUESTION, response_format=City, **GREEDY | {"max_tokens": 100})
    return City.model_validate_json(answer.choices[0].message.content).model_dump()


@finding
def wrong_field():
    return litellm.completion(messages=QUESTION, logit_bias=UNKNOWN_TOKEN, **GREEDY).model_dump()


@finding
def text_completion():
    options = {**GREEDY, "model": "text-completion-openai/" + MODEL, "max_tokens": 8}
    return litellm.text_completion(prompt="One, two, three,", logprobs=2, **options).model_dump()


report()
