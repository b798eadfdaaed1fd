"""No body, however odd, ends in anything but a request or a refusal."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.errors import RequestError
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.chat_routes import read_chat_call
from nanoserve.server.completion_routes import read_completion_call
from nanoserve.server.error_response import error_response
from nanoserve.server.generation_call import GenerationCall
from nanoserve.server.prepared_call import prepare_call
from nanoserve.server.protocol import CompletionRequest
from nanoserve.server.serving_context import ServingContext
from nanoserve.text.chat_template import ChatTemplate
from tests.builders import END_ID, TOOL_TEMPLATE, make_context, make_engine
from tests.fakes import FakeCompiler

CONTEXT = make_context(
    make_engine(),
    chat_template=ChatTemplate(TOOL_TEMPLATE, None, None),
    grammar_compiler=FakeCompiler("{}", END_ID),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "text", "none", "fake", "auto", "\ud800", "\x00"])
    | st.sampled_from(["function", "required", "json_object", "json_schema", "{}", "f"])
)
names = ["role", "content", "type", "text", "include_usage", "5", "function", "name", "parameters"]
keys = st.sampled_from([*names, "json_schema", "schema", "json", "tool_calls"]) | st.text(
    max_size=3
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.fixed_dictionaries(
        {"id": st.just("c")},
        optional={
            "function": st.fixed_dictionaries(
                {"name": st.just("f"), "arguments": st.text(alphabet='{}[]":,0a\\', max_size=9)}
            ),
            "type": scalars,
        },
    ),
    max_size=2,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": values})
    | st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": calls}),
    max_size=2,
)
tools = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": scalars})}
    )
    | st.builds(
        lambda parameters: {
            "type": "function",
            "function": {"name": "f", "parameters": parameters},
        },
        st.dictionaries(keys, values, max_size=2),
    ),
    max_size=2,
)


def status_of(read: Callable[[bytes, ServingContext], GenerationCall], body: bytes) -> int:
    """Return 200 for a call that would be queued, and the status of a refusal."""
    try:
        prepare_call(CONTEXT, read(body, CONTEXT))
    except RequestError as error:
        return error_response(error).status_code
    return 200


@pytest.mark.parametrize(
    ("read", "model", "prompt"),
    [
        (read_completion_call, CompletionRequest, ("prompt", values | st.text(max_size=5))),
        (read_chat_call, ChatCompletionRequest, ("messages", messages)),
    ],
)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_of_any_field(
    read: Callable[[bytes, ServingContext], GenerationCall],
    model: type[CompletionRequest] | type[ChatCompletionRequest],
    prompt: tuple[str, st.SearchStrategy[Any]],
    data: st.DataObject,
) -> None:
    """Known fields with any JSON in them are honoured or refused."""
    names = st.sampled_from(sorted(model.model_fields))
    fields = data.draw(st.dictionaries(names, values, max_size=3))
    fields[prompt[0]] = data.draw(prompt[1])
    if "tools" in fields:
        fields["tools"] = data.draw(tools)

    assert status_of(read, json.dumps(fields).encode()) in (200, 400, 404)


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=40) | st.text(alphabet='{}[]":,0e-\\u', max_size=40).map(str.encode))
def test_any_bytes(body: bytes) -> None:
    """What is not even JSON is refused."""
    assert status_of(read_completion_call, body) == 400
