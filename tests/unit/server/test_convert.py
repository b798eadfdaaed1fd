"""Fields to prompts and sampling."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError, PromptTooLongError
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.convert import (
    NEUTRAL_VALUES,
    admit_prompts,
    chat_sampling,
    check_num_choices,
    completion_sampling,
    encode_chat,
    encode_prompts,
    split_prompts,
)
from nanoserve.server.protocol import ChatCompletionRequest, CompletionRequest
from nanoserve.text.chat_template import ChatTemplate
from tests.builders import CHAT_TEMPLATE, make_limits
from tests.fakes import ByteTokenizer

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
    ("field", "value"),
    [
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1.0),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"1": 5.0}),
        ("min_tokens", 1),
        ("include_stop_str_in_output", True),
        ("priority", 1),
        ("echo", True),
        ("suffix", "x"),
        ("logprobs", 0),
    ],
)
def test_unsupported_values_are_refused_by_name(field: str, value: Any) -> None:
    """Each would change the answer, so none is ignored."""
    with pytest.raises(InvalidRequestError, match=field) as caught:
        completion_sampling(completion(**{field: value}))

    assert caught.value.param == field


def test_neutral_values_are_accepted() -> None:
    """What changes nothing may be said, null included."""
    for name, values in NEUTRAL_VALUES.items():
        for value in values:
            if name in CompletionRequest.model_fields and (name, value) != ("logprobs", False):
                completion_sampling(completion(**{name: value}))
            if name in ChatCompletionRequest.model_fields:
                chat_sampling(chat(**{name: value}))


@pytest.mark.parametrize(("best_of", "n"), [(3, 2), (1, 2)])
def test_best_of_must_be_n(best_of: int, n: int) -> None:
    """Sampling more than is shown is not supported."""
    completion_sampling(completion(best_of=n, n=n))
    with pytest.raises(InvalidRequestError, match="best_of"):
        completion_sampling(completion(best_of=best_of, n=n))


def test_prompts_are_split_by_shape() -> None:
    """A list of ids is one prompt; a list of lists or of texts is several."""
    assert split_prompts(completion(prompt="ab")) == ["ab"]
    assert split_prompts(completion(prompt=[1, 2])) == [[1, 2]]
    assert split_prompts(completion(prompt=["a", "b"])) == ["a", "b"]
    assert split_prompts(completion(prompt=[[1], [2]])) == [[1], [2]]
    assert list(encode_prompts(["a", [7]], ByteTokenizer(), 8)) == [(97,), (7,)]


def test_choices_are_bounded() -> None:
    """The smaller of the fixed bound and what can be in flight counts."""
    check_num_choices(128, max_in_flight=500)
    for num_choices, max_in_flight in ((129, 500), (5, 4)):
        with pytest.raises(InvalidRequestError, match=f"asks for {num_choices}"):
            check_num_choices(num_choices, max_in_flight)


class _Recorder(ByteTokenizer):
    """Notes whether special tokens were asked for."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.added_special_tokens = add_special_tokens
        return super().encode(text)


def test_rendered_chat_gets_no_second_bos() -> None:
    """The template's text is tokenised as it is; developer is shown as system."""
    codec = _Recorder()
    template = ChatTemplate("<s>" + CHAT_TEMPLATE, "<s>", None)
    fields = chat(messages=[{"role": "developer", "content": "be"}, USER])

    token_ids = encode_chat(fields, codec, template, 99)

    assert bytes(token_ids).decode() == "<s><system>be\n<user>x\n<assistant>"
    assert codec.added_special_tokens is False


def test_template_variables_reach_the_template() -> None:
    """`enable_thinking` is handed on; what is not set is not defined."""
    template = ChatTemplate("{{ enable_thinking is defined }} {{ enable_thinking }}", None, None)

    fields = chat(chat_template_kwargs={"enable_thinking": False})

    assert bytes(encode_chat(fields, ByteTokenizer(), template, 99)) == b"True False"
    assert bytes(encode_chat(chat(), ByteTokenizer(), template, 99)) == b"False "


def test_hopeless_text_is_refused_untokenised() -> None:
    """A text longer than the context's longest tokens costs no tokenising."""
    codec = _Recorder()
    with pytest.raises(PromptTooLongError, match="has at least 9 prompt tokens") as caught:
        list(encode_prompts(["x", "y" * 33], codec, 8))
    with pytest.raises(PromptTooLongError, match="has at least 9 prompt tokens"):
        encode_chat(chat(), codec, ChatTemplate("y" * 33, None, None), 8)

    assert caught.value.code == "context_length_exceeded"
    assert list(encode_prompts(["y" * 32], codec, 8)) == [(121,) * 32]


def test_bad_length_is_named_as_it_was_sent() -> None:
    """`max_completion_tokens` goes before `max_tokens`, and its error says so."""
    with pytest.raises(InvalidRequestError, match="max_completion_tokens is 0") as caught:
        chat_sampling(chat(max_completion_tokens=0, max_tokens=5))

    assert caught.value.param == "max_completion_tokens"


def test_too_long_prompt_names_its_field() -> None:
    """The error keeps its numbers and gets the endpoint's field."""
    with pytest.raises(PromptTooLongError) as caught:
        admit_prompts(make_limits(), [(1,) * 600], SamplingParams(), "messages")

    assert (caught.value.param, caught.value.prompt_tokens) == ("messages", 600)
