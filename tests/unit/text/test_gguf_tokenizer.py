"""Tokenizers rebuilt from GGUF metadata."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from tests.text_models import CORPUS, byte_level_metadata, sentencepiece_metadata

_METADATA = {"gpt2": byte_level_metadata, "llama": sentencepiece_metadata}


def _tokens(metadata: dict[str, Any], text: str) -> list[str]:
    token_ids = tokenizer_from_gguf(metadata).encode(text, add_special_tokens=False)
    return [metadata["tokenizer.ggml.tokens"][token_id] for token_id in token_ids]


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_special_tokens_come_from_the_metadata(model: str) -> None:
    """Ids, BOS, EOS and the chat template are those of the file."""
    metadata = _METADATA[model]() | {"tokenizer.chat_template": "{{ messages }}"}

    tokenizer = tokenizer_from_gguf(metadata)

    assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"])
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.bos_token_id == metadata["tokenizer.ggml.bos_token_id"]
    assert tokenizer.eos_token_id == metadata["tokenizer.ggml.eos_token_id"]
    assert tokenizer.special_token_ids == ({0, 1, 2, 3} if model == "gpt2" else {0, 1, 2})
    assert tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("model", "flags", "framed"),
    [
        ("gpt2", {}, False),
        ("gpt2", {"add_bos_token": True, "add_eos_token": True}, True),
        ("llama", {"add_bos_token": False}, False),
        ("llama", {"add_eos_token": True}, True),
    ],
)
def test_bos_and_eos_are_added_as_the_flags_say(
    model: str, flags: dict[str, bool], framed: bool
) -> None:
    """Without a flag, SentencePiece adds BOS and byte-level does not; EOS only when asked."""
    metadata = _METADATA[model]() | {f"tokenizer.ggml.{key}": flag for key, flag in flags.items()}
    tokenizer = tokenizer_from_gguf(metadata)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    frame = (tokenizer.bos_token_id, tokenizer.eos_token_id)

    assert tokenizer.encode("hi") == ([frame[0], *plain, frame[1]] if framed else plain)


def test_no_bos_is_added_where_there_is_none() -> None:
    """A file that asks for BOS and names none gets none."""
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = tokenizer_from_gguf(metadata)

    assert tokenizer.encode("hi") == tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.bos_token_id is None


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("text", CORPUS)
def test_text_survives(model: str, text: str) -> None:
    """Decoding what was encoded gives the text back, control tokens written out."""
    tokenizer = tokenizer_from_gguf(_METADATA[model]())
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    expected = text if model == "gpt2" else text.replace("▁", " ")
    byte_like = model == "llama" and "<0x" in text
    starts_with_blank = model == "llama" and expected.startswith(" ")

    decoded = tokenizer.decode(token_ids, skip_special_tokens=False)

    assert decoded == expected or byte_like or (starts_with_blank and decoded == expected[1:])


def test_user_defined_tokens_are_matched_whole_and_shown() -> None:
    """A user-defined token is one id in any text, and is not special."""
    for metadata in (byte_level_metadata(), sentencepiece_metadata()):
        assert "<tool>" in _tokens(metadata, "a<tool>b")
        tokenizer = tokenizer_from_gguf(metadata)
        assert tokenizer.decode(tokenizer.encode("a<tool>b")) == "a<tool>b"


def test_tokens_outside_the_byte_alphabet_keep_their_ids() -> None:
    """A control or user-defined token may use any character; its id is the file's."""
    metadata = byte_level_metadata()
    tokenizer = tokenizer_from_gguf(metadata)
    user_defined = metadata["tokenizer.ggml.tokens"][-1]

    assert tokenizer.encode("<｜end｜>") == [3]  # noqa: RUF001 - DeepSeek writes such tokens
    assert tokenizer.encode(user_defined) == [tokenizer.vocab_size - 1]
    assert tokenizer.decode([3, tokenizer.vocab_size - 1]) == user_defined


def test_ordinary_token_outside_the_byte_alphabet_is_respelled() -> None:
    """An ordinary token written as plain text is understood as its bytes."""
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.token_type"].append(1)
    tokens.append("日 本")

    assert tokenizer_from_gguf(metadata).decode([len(tokens) - 1]) == "日 本"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["1234", "aB"]),
        ("smollm", ["1234", "aB"]),
        ("llama-bpe", ["123", "4", "aB"]),
        ("qwen2", ["1", "2", "3", "4", "aB"]),
        ("tekken", ["1", "2", "3", "4", "a", "B"]),
    ],
)
def test_pre_tokenizer_cuts_its_own_way(pre: str, pieces: list[str]) -> None:
    """With merges for everything, only the cut decides how text is split."""
    metadata = byte_level_metadata(pre)
    metadata["tokenizer.ggml.tokens"] += ["12", "123", "1234", "aB"]
    metadata["tokenizer.ggml.token_type"] += [1, 1, 1, 1]
    metadata["tokenizer.ggml.merges"] = ["1 2", "12 3", "123 4", "a B"]

    assert _tokens(metadata, "1234aB") == pieces


def test_spaces_before_sentencepiece_text() -> None:
    """`add_space_prefix` decides whether text gets a blank in front."""
    metadata = sentencepiece_metadata()
    assert _tokens(metadata, "the")[0].startswith("▁")

    metadata["tokenizer.ggml.add_space_prefix"] = False

    assert not _tokens(metadata, "the")[0].startswith("▁")
    assert tokenizer_from_gguf(metadata).decode([]) == ""


def test_characters_outside_the_vocabulary_fall_back_to_bytes() -> None:
    """SentencePiece spells an unknown character with byte tokens."""
    assert _tokens(sentencepiece_metadata(), "x🦜")[-4:] == ["<0xF0>", "<0x9F>", "<0xA6>", "<0x9C>"]


def test_sentencepiece_merges_may_be_listed() -> None:
    """A file with merges needs no scores."""
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.scores"]
    metadata["tokenizer.ggml.tokens"].append("qz")
    metadata["tokenizer.ggml.token_type"].append(1)
    metadata["tokenizer.ggml.merges"] = ["q z"]

    assert _tokens(metadata, "aqz") == ["▁", "a", "qz"]


def test_vocabulary_without_types_is_ordinary() -> None:
    """Without token types only the named tokens are special."""
    metadata = byte_level_metadata()
    del metadata["tokenizer.ggml.token_type"]

    assert tokenizer_from_gguf(metadata).special_token_ids == {0, 1}


@pytest.mark.parametrize("key", ["model", "pre"])
def test_unknown_kinds_are_refused_by_name(key: str) -> None:
    """A tokenizer or pre-tokenizer we do not know is named, with those we do."""
    metadata = byte_level_metadata() | {f"tokenizer.ggml.{key}": "mystery"}

    with pytest.raises(
        UnsupportedModelError, match=rf"tokenizer.ggml.{key} in m.gguf is 'mystery'"
    ) as refusal:
        tokenizer_from_gguf(metadata, "m.gguf")
    assert {"gpt2", "qwen2"} & set(refusal.value.known)


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_key_is_named(key: str) -> None:
    """A missing key is named with the file."""
    metadata = byte_level_metadata()
    del metadata[f"tokenizer.ggml.{key}"]

    with pytest.raises(
        CorruptFileError, match=rf"m.gguf is damaged: tokenizer.ggml.{key} is missing"
    ):
        tokenizer_from_gguf(metadata, "m.gguf")


def test_sentencepiece_without_scores_or_merges_is_refused() -> None:
    """Something must say in which order tokens merge."""
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.scores"]

    with pytest.raises(CorruptFileError, match=r"ggml\.scores is missing"):
        tokenizer_from_gguf(metadata)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("ggml.model", 7, "is a int, not a str"),
        ("ggml.tokens", "abc", "is a str, not a list"),
        ("ggml.tokens", [], "is missing or empty"),
        ("ggml.tokens", ["a", 1], "values that are not str"),
        ("ggml.token_type", [1, 1], "has 2 entries"),
        ("ggml.merges", ["a b c"], "'a b c', which is not two tokens"),
        ("ggml.merges", ["ab"], "'ab', which is not two tokens"),
        ("ggml.merges", [7], "7, which is not two tokens"),
        ("ggml.merges", ["no such"], "does not fit ggml.tokens"),
        ("ggml.bos_token_id", 10**6, "is 1000000, outside the"),
        ("ggml.eos_token_id", -1, "is -1, outside the"),
        ("ggml.eos_token_id", True, "is a bool, not a int"),
        ("ggml.add_bos_token", 1, "is a int, not a bool"),
        ("chat_template", ["x"], "is a list, not a str"),
    ],
)
def test_damaged_value_is_named(key: str, value: Any, problem: str) -> None:
    """A value of the wrong type, length or range is refused, naming its key."""
    metadata = byte_level_metadata() | {f"tokenizer.{key}": value}

    with pytest.raises(CorruptFileError) as refusal:
        tokenizer_from_gguf(metadata)
    assert f"tokenizer.{key} " in refusal.value.problem
    assert problem in refusal.value.problem


def test_scores_of_another_length_are_refused() -> None:
    """Scores must be as many as tokens."""
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.scores": [0.0]}

    with pytest.raises(CorruptFileError, match="has 1 entries for"):
        tokenizer_from_gguf(metadata)
