"""Fields to sampling."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.convert import (
    NEUTRAL_VALUES,
    chat_sampling,
    check_num_choices,
    completion_sampling,
    num_shown,
)
from nanoserve.server.protocol import CompletionRequest

USER = {"role": "user", "content": "x"}


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x"} | fields)


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [USER]} | fields)


def test_every_field_arrives() -> None:
    """Sampling holds what the client sent."""
    fields = completion(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=3,
        n=2,
        max_tokens=9,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        ignore_eos=True,
        presence_penalty=-1,
        frequency_penalty=0.25,
        repetition_penalty=1.5,
        logit_bias={"5": -100, "6": 1.5},
        min_tokens=4,
        include_stop_str_in_output=True,
        logprobs=5,
    )

    assert completion_sampling(fields) == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=3,
        n=2,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        presence_penalty=-1.0,
        frequency_penalty=0.25,
        repetition_penalty=1.5,
        logit_bias=((5, -100.0), (6, 1.5)),
        min_tokens=4,
        include_stop=True,
        num_logprobs=5,
    )


def test_defaults_are_openais() -> None:
    """16 tokens for completions, what is left for chat, temperature 1, no seed."""
    assert completion_sampling(completion()) == SamplingParams(max_tokens=16)
    assert completion_sampling(completion(max_tokens=None)).max_tokens == 16
    assert chat_sampling(chat()) == SamplingParams(max_tokens=None)


def test_seed_0_is_a_seed() -> None:
    """0 is not the same as none."""
    assert completion_sampling(completion(seed=0)).seed == 0


def test_max_completion_tokens_wins() -> None:
    """Of the two names the newer one counts."""
    assert chat_sampling(chat(max_tokens=5, max_completion_tokens=7)).max_tokens == 7
    assert chat_sampling(chat(max_tokens=5)).max_tokens == 5


@pytest.mark.parametrize("top_k", [-1, 0, None, 2**31, 10**18])
def test_top_k_that_keeps_all(top_k: int | None) -> None:
    """The -1 that vLLM has for all tokens is understood, and more than there are."""
    assert completion_sampling(completion(top_k=top_k)).top_k == 0


@pytest.mark.parametrize(
    ("fields", "num_logprobs", "num_prompt_logprobs"),
    [
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 3, "echo": True}, 3, 3),
        ({"logprobs": 0, "echo": True, "max_tokens": 0}, 0, 0),
        ({"echo": True}, None, None),
        ({"echo": True, "max_tokens": 0}, None, 0),
        ({"best_of": 2}, 0, None),
        ({"best_of": 2, "logprobs": 1}, 1, None),
    ],
)
def test_completion_logprobs(
    fields: dict[str, Any], num_logprobs: int | None, num_prompt_logprobs: int | None
) -> None:
    """Echo scores the prompt where logprobs are asked for; best_of needs scores to choose."""
    sampling = completion_sampling(completion(**fields))

    assert sampling.num_logprobs == num_logprobs
    assert sampling.num_prompt_logprobs == num_prompt_logprobs


def test_chat_logprobs() -> None:
    """Without top_logprobs the tokens alone are scored."""
    assert chat_sampling(chat(logprobs=True)).num_logprobs == 0
    assert chat_sampling(chat(logprobs=True, top_logprobs=20)).num_logprobs == 20
    assert chat_sampling(chat(logprobs=False)).num_logprobs is None


def test_best_of_is_what_is_generated() -> None:
    """`n` of them are shown."""
    fields = completion(best_of=5, n=2)

    assert (completion_sampling(fields).n, num_shown(fields)) == (5, 2)
    assert completion_sampling(completion(best_of=2, n=2, stream=True)).n == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {" 5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"priority": 2**31}, "priority"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_impossible_completions_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Each names the field at fault."""
    with pytest.raises(InvalidRequestError, match=param) as caught:
        completion_sampling(completion(**fields))

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_impossible_chats_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Each names the field as it was sent."""
    with pytest.raises(InvalidRequestError, match=param) as caught:
        chat_sampling(chat(**fields))

    assert caught.value.param == param


def test_neutral_values_are_accepted() -> None:
    """What changes nothing may be said, null included."""
    for name, values in NEUTRAL_VALUES.items():
        for value in values:
            if name in CompletionRequest.model_fields:
                completion_sampling(completion(**{name: value}))
            if name in ChatCompletionRequest.model_fields:
                chat_sampling(chat(**{name: value}))


def test_choices_are_bounded() -> None:
    """The smaller of the fixed bound and what can be in flight counts."""
    check_num_choices(128, max_in_flight=500)
    for num_choices, max_in_flight in ((129, 500), (5, 4)):
        with pytest.raises(InvalidRequestError, match=f"asks for {num_choices}"):
            check_num_choices(num_choices, max_in_flight)
