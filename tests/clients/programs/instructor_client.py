"""instructor: a pydantic model out of each answer, through JSON schema and through tools, without a second try."""

import instructor
from common import MODEL, QUESTION, UNKNOWN_TOKEN, URL, City, finding, report
from openai import OpenAI

OPTIONS = {"model": MODEL, "temperature": 0, "max_tokens": 200, "max_retries": 0}


def client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=URL + "/v1", api_key="unused", max_retries=0), mode=mode)


schemas = client(instructor.Mode.JSON_SCHEMA)
tools = client(instructor.Mode.TOOLS)


@finding
def plain():
    answer = schemas.chat.completions.create(response_model=None, messages=QUESTION, **OPTIONS)
    return answer.choices[0].message.content


@finding
def parsed_by_schema():
    return schemas.chat.completions.create(response_model=City, messages=QUESTION, **OPTIONS).model_dump()


@finding
def parsed_by_tool():
    return tools.chat.completions.create(response_model=City, messages=QUESTION, **OPTIONS).model_dump()


@finding
def streamed_by_schema():
    parts = list(schemas.chat.completions.create_partial(response_model=City, messages=QUESTION, **OPTIONS))
    return {"parts": len(parts), "last": parts[-1].model_dump()}


@finding
def streamed_by_tool():
    parts = list(tools.chat.completions.create_partial(response_model=City, messages=QUESTION, **OPTIONS))
    return {"parts": len(parts), "last": parts[-1].model_dump()}


@finding
def with_completion():
    city, answer = schemas.chat.completions.create_with_completion(
        response_model=City, messages=QUESTION, logprobs=True, top_logprobs=2, **OPTIONS
    )
    return {"city": city.model_dump(), "body": answer.to_dict()}


@finding
def wrong_field():
    return schemas.chat.completions.create(
        response_model=City, messages=QUESTION, logit_bias=UNKNOWN_TOKEN, **OPTIONS
    ).model_dump()


report()
