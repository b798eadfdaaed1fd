"""The openai SDK, its own models applied strictly to every body and every chunk.

The SDK itself never validates an answer. Here each raw JSON must be valid for the SDK's
pydantic model in strict mode, and hold no field that the model does not know.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import openai
import pydantic
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

OWN_FIELDS = {"Model": {"max_model_len"}}  # documented extensions, by the SDK's class
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Weather of a city", "parameters": PARAMETERS}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "clock", "description": "The time"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": PARAMETERS, "strict": True},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
USER: Any = {"role": "user", "content": "Name a city."}

CHAT_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "max_completion_tokens": {"max_completion_tokens": 4, "max_tokens": None},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 20},
    "n": {"n": 3, "temperature": 1.0, "seed": 7},
    "n_logprobs": {"n": 2, "logprobs": True, "top_logprobs": 2, "temperature": 1.0, "seed": 7},
    "stop": {"stop": ["a", "e"]},
    "stop_text": {"stop": "city"},
    "sampling": {"temperature": 0.7, "top_p": 0.9, "seed": 3},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": -0.5},
    "logit_bias": {"logit_bias": {"100": -100, "200": 5}},
    "own_sampling": {"extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}},
    "own_ends": {"extra_body": {"min_tokens": 4, "ignore_eos": True, "stop_token_ids": [198]}},
    "unread": {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
    "json_object": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "json_schema": {"response_format": SCHEMA_FORMAT, "max_tokens": 40},
    "text_format": {"response_format": {"type": "text"}},
    "guided_choice": {"extra_body": {"guided_choice": ["Paris", "Prague"]}},
    "tools": {"tools": TOOLS},
    "tools_none": {"tools": TOOLS, "tool_choice": "none"},
    "tools_required": {"tools": TOOLS[:1], "tool_choice": "required", "max_tokens": 60},
    "tools_named": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60},
    "tools_single": {
        "tools": TOOLS[:1],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 60,
    },
    "tools_logprobs": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60, "logprobs": True},
    "reasoning": {"extra_body": {"separate_reasoning": True}},
    "roles": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "tool_result": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        ]
    },
}
COMPLETION_CASES: dict[str, dict[str, Any]] = {
    "text": {},
    "texts": {"prompt": ["The capital", "One two"]},
    "ids": {"prompt": [504, 3575, 282]},
    "lists_of_ids": {"prompt": [[504, 3575], [504, 3575, 282]]},
    "n": {"n": 2, "temperature": 1.0, "seed": 1},
    "best_of": {"n": 1, "best_of": 3, "temperature": 1.0, "seed": 1},
    "logprobs": {"logprobs": 5},
    "no_alternatives": {"logprobs": 0},
    "echo": {"echo": True},
    "echo_logprobs": {"echo": True, "logprobs": 2},
    "score": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "stop": {"stop": [" the", "."]},
    "kept_stop": {"stop": [" the"], "extra_body": {"include_stop_str_in_output": True}},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {"100": -100}},
    "regex": {"extra_body": {"guided_regex": "[a-c]{3}"}},
    "schema": {"extra_body": {"response_format": SCHEMA_FORMAT}, "max_tokens": 40},
}
CANNOT_STREAM = {"best_of"}

T = TypeVar("T", bound=pydantic.BaseModel)
City = pydantic.create_model("City", city=(str, ...))


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def strictly(kind: type[T], raw: str | bytes) -> T:
    """Return the model of `raw`; fails where a type is not exact or a field is unknown."""
    parsed = kind.model_validate_json(raw, strict=True)
    assert list(unknown_fields(parsed)) == []
    return parsed


def unknown_fields(value: object) -> Iterator[str]:
    if isinstance(value, pydantic.BaseModel):
        name = type(value).__name__
        yield from (f"{name}.{field}" for field in set(value.model_extra or {}) - own(name))
        for field in type(value).model_fields:
            yield from unknown_fields(getattr(value, field, None))
    elif isinstance(value, list):
        for item in value:
            yield from unknown_fields(item)


def own(name: str) -> set[str]:
    return OWN_FIELDS.get(name, set())


def chat_fields(model: str, case: dict[str, Any]) -> dict[str, Any]:
    base = {"model": model, "messages": [USER], "max_tokens": 8, "temperature": 0.0}
    return {key: value for key, value in (base | case).items() if value is not None}


def completion_fields(model: str, case: dict[str, Any]) -> dict[str, Any]:
    base = {"model": model, "prompt": "The capital of", "max_tokens": 8, "temperature": 0.0}
    return base | case


def frames(call: Callable[..., Any], fields: dict[str, Any]) -> list[str]:
    """Return the data of every event of a stream, but for the last: [DONE]."""
    with call(**fields, stream=True, stream_options={"include_usage": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    data = [line.removeprefix("data: ") for line in lines]
    assert data.pop() == "[DONE]"
    return data


def with_typed_nulls(raw: str) -> str:
    """Fill the nulls that OpenAI's API sends in completions and the SDK's types leave out.

    These are the reason of a chunk that is not the last, and the scores of a prompt's first
    token, which follows nothing.
    """
    body = json.loads(raw)
    for choice in body["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        scores = choice["logprobs"]
        if scores and scores["token_logprobs"][:1] == [None]:
            assert scores["top_logprobs"][0] is None
            scores["token_logprobs"][0], scores["top_logprobs"][0] = 0.0, {}
    return json.dumps(body)


@pytest.mark.parametrize("name", CHAT_CASES)
def test_chat(client: openai.OpenAI, model_name: str, name: str) -> None:
    """A whole answer is the SDK's ChatCompletion, and its numbers agree."""
    fields = chat_fields(model_name, CHAT_CASES[name])
    raw = client.chat.completions.with_raw_response.create(**fields)

    answer = strictly(ChatCompletion, raw.content)

    assert len(answer.choices) == fields.get("n", 1)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    for choice in answer.choices:
        assert (choice.logprobs is not None) == fields.get("logprobs", False)
        has_calls = bool(choice.message.tool_calls)
        assert choice.finish_reason in (
            ("tool_calls", "length") if has_calls else ("stop", "length")
        )


@pytest.mark.parametrize("name", CHAT_CASES)
def test_chat_stream(client: openai.OpenAI, model_name: str, name: str) -> None:
    """Every chunk is the SDK's ChatCompletionChunk, and together they are the whole answer."""
    fields = chat_fields(model_name, CHAT_CASES[name])
    data = frames(client.chat.completions.with_streaming_response.create, fields)

    chunks = [strictly(ChatCompletionChunk, frame) for frame in data]

    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    whole = client.chat.completions.create(**fields)
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        own_chunks = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        text = "".join(c.delta.content or "" for c in own_chunks)
        calls = [call for c in own_chunks for call in c.delta.tool_calls or []]
        arguments = "".join((call.function and call.function.arguments) or "" for call in calls)
        scored = [token for c in own_chunks if c.logprobs for token in c.logprobs.content or []]
        assert text == (choice.message.content or "")
        assert arguments == "".join(
            call.function.arguments
            for call in choice.message.tool_calls or []
            if call.type == "function"
        )
        assert scored == ((choice.logprobs and choice.logprobs.content) or [])
        assert [c.finish_reason for c in own_chunks if c.finish_reason] == [choice.finish_reason]


@pytest.mark.parametrize("name", COMPLETION_CASES)
def test_completion(client: openai.OpenAI, model_name: str, name: str) -> None:
    """A whole answer is the SDK's Completion."""
    fields = completion_fields(model_name, COMPLETION_CASES[name])
    raw = client.completions.with_raw_response.create(**fields)

    answer = strictly(Completion, with_typed_nulls(raw.text))

    prompt = fields["prompt"]
    num_prompts = (
        len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1
    )
    assert [choice.index for choice in answer.choices] == list(
        range(num_prompts * fields.get("n", 1))
    )
    for choice in answer.choices:
        assert (choice.logprobs is not None) == ("logprobs" in fields)
        assert not fields.get("echo") or choice.text.startswith("The capital of")


@pytest.mark.parametrize("name", sorted(COMPLETION_CASES.keys() - CANNOT_STREAM))
def test_completion_stream(client: openai.OpenAI, model_name: str, name: str) -> None:
    """Every chunk is the SDK's Completion, and together they are the whole answer."""
    fields = completion_fields(model_name, COMPLETION_CASES[name])
    data = frames(client.completions.with_streaming_response.create, fields)

    chunks = [strictly(Completion, with_typed_nulls(frame)) for frame in data]

    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    whole = client.completions.create(**fields)
    for choice in whole.choices:
        own_chunks = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.text for c in own_chunks) == choice.text
        tokens = [t for c in own_chunks if c.logprobs for t in c.logprobs.tokens or []]
        assert tokens == ((choice.logprobs and choice.logprobs.tokens) or [])


def test_parsed_answer(client: openai.OpenAI, model_name: str) -> None:
    """`parse` makes an object of the answer by a pydantic model's schema."""
    answer = client.chat.completions.parse(
        model=model_name, messages=[USER], response_format=City, max_tokens=200, temperature=0.0
    )

    assert isinstance(answer.choices[0].message.parsed, City)


def test_parsed_tool_call(client: openai.OpenAI, model_name: str) -> None:
    """`parse` makes an object of a forced call's arguments, and takes its turn back."""
    tool = openai.pydantic_function_tool(City, name="weather")
    fields: Any = {"model": model_name, "tools": [tool], "temperature": 0.0, "max_tokens": 200}
    answer = client.chat.completions.parse(messages=[USER], tool_choice="required", **fields)
    message = answer.choices[0].message
    calls = message.tool_calls or []

    assert isinstance(calls[0].function.parsed_arguments, City)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    turns: Any = [USER, message.to_dict(), *results]
    raw = client.chat.completions.with_raw_response.create(messages=turns, **fields)
    strictly(ChatCompletion, raw.content)


@pytest.mark.parametrize("name", ["guided_choice", "json_schema", "tools_named"])
def test_stream_helper(client: openai.OpenAI, model_name: str, name: str) -> None:
    """The SDK's accumulating stream ends with the whole answer."""
    fields = chat_fields(model_name, CHAT_CASES[name])
    with client.chat.completions.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()

    whole = client.chat.completions.create(**fields)
    assert "chunk" in kinds
    ours, theirs = whole.choices[0], answer.choices[0]
    assert (theirs.message.content or "") == (ours.message.content or "")
    assert theirs.finish_reason == ours.finish_reason
    assert len(theirs.message.tool_calls or []) == len(ours.message.tool_calls or [])


def test_models(client: openai.OpenAI, model_name: str) -> None:
    """The list and the one model are the SDK's own."""
    listed = json.loads(client.models.with_raw_response.list().text)
    raw = client.models.with_raw_response.retrieve(model_name)

    assert listed.keys() == {"object", "data"}
    assert strictly(Model, raw.content) == strictly(Model, json.dumps(listed["data"][0]))


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "context_length_exceeded"),
        ({"temperature": -1}, openai.BadRequestError, None),
        ({"n": 0}, openai.BadRequestError, None),
        ({"top_logprobs": 21, "logprobs": True}, openai.BadRequestError, None),
        ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError, None),
        ({"modalities": ["audio"]}, openai.BadRequestError, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    client: openai.OpenAI,
    model_name: str,
    fields: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str | None,
    stream: bool,
) -> None:
    """A refusal is the SDK's typed error with all four members, stream or not."""
    with pytest.raises(error) as refused:
        client.chat.completions.create(**chat_fields(model_name, fields), stream=stream)

    body: Any = refused.value.body
    assert body.keys() == {"message", "type", "param", "code"}
    assert code is None or refused.value.code == code


@pytest.mark.parametrize("path", ["embeddings", "responses"])
def test_refused_endpoints(client: openai.OpenAI, model_name: str, path: str) -> None:
    """Endpoints that are not served are refused by name."""
    with pytest.raises(openai.APIStatusError) as refused:
        getattr(client, path).create(model=model_name, input="x")

    assert refused.value.status_code < 500
