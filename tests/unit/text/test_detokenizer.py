"""From token ids to text, one at a time."""

import re

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from nanoserve.errors import UnsupportedModelError
from nanoserve.text.detokenizer import (
    BYTE_ALPHABET,
    DecodingRules,
    DetokenizerStream,
    TokenBytes,
    read_decoding_rules,
)

_CHAR_OF = {byte: char for char, byte in BYTE_ALPHABET.items()}
_EURO = "€".encode()


def _backend(tokens: list[str], decoder: decoders.Decoder) -> Backend:
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=ids, merges=[]))
    backend.decoder = decoder
    return backend


def _sentencepiece(*steps: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *steps]
    )


def _shown_byte_level(*token_bytes: bytes) -> list[str]:
    tokens = ["".join(_CHAR_OF[byte] for byte in spelled) for spelled in token_bytes]
    return _shown(tokens, decoders.ByteLevel())


def _shown_sentencepiece(*tokens: str, left: int = 1) -> list[str]:
    return _shown([*tokens], _sentencepiece(decoders.Strip(content=" ", left=left)))


def _shown(tokens: list[str], decoder: decoders.Decoder) -> list[str]:
    """Return what each push shows, and last what the flush does."""
    vocabulary = list(dict.fromkeys(tokens))
    stream = DetokenizerStream(TokenBytes(_backend(vocabulary, decoder), frozenset()))
    return [*(stream.push(vocabulary.index(token)) for token in tokens), stream.flush()]


def test_character_over_several_tokens_is_shown_whole() -> None:
    """A character is shown with its last byte, and not before."""
    assert _shown_byte_level(_EURO[:1], _EURO[1:2], _EURO[2:]) == ["", "", "€", ""]


def test_byte_tokens_form_characters() -> None:
    """SentencePiece's byte tokens form characters as byte-level tokens do."""
    assert _shown_sentencepiece("<0xE2>", "<0x82>", "<0xAC>", "x") == ["", "", "€", "x", ""]


def test_unfinished_character_comes_with_the_flush() -> None:
    """An answer that ends inside a character ends with U+FFFD."""
    assert _shown_byte_level(b"a", _EURO[:2]) == ["a", "", "\ufffd"]
    assert _shown_sentencepiece("<0xE2>", "<0x82>") == ["", "", "\ufffd\ufffd"]


def test_stray_bytes_of_sentencepiece_count_one_by_one() -> None:
    """Each byte that belongs to no character is one U+FFFD; characters beside it survive."""
    euro = ["<0xE2>", "<0x82>", "<0xAC>"]

    assert _shown_sentencepiece("<0xE2>", "<0x82>", "a") == ["", "", "\ufffd\ufffda", ""]
    assert _shown_sentencepiece(*euro, "<0xff>") == ["", "", "€", "\ufffd", ""]


def test_broken_bytes_are_not_held() -> None:
    """A run that can never become a character is shown as it comes."""
    assert _shown_byte_level(*[b"\xf0"] * 50) == [""] + ["\ufffd"] * 50


def test_first_blank_of_sentencepiece_is_dropped_once() -> None:
    """The blank that encoding put before the text is dropped, and no other."""
    assert _shown_sentencepiece("▁▁a", "▁b") == [" a", " b", ""]


def test_blanks_to_drop_may_come_in_several_tokens() -> None:
    """With two blanks to drop, each may be a token of its own."""
    assert _shown_sentencepiece("▁", "▁", "▁c", left=2) == ["", "", " c", ""]


def test_blank_after_text_is_kept() -> None:
    """Only the start of the text is stripped."""
    assert _shown_sentencepiece("a", "▁b") == ["a", " b", ""]


def test_skipped_and_unknown_ids_stand_for_nothing() -> None:
    """Skipped ids and ids outside the vocabulary have no bytes."""
    backend = _backend(["a", "b"], decoders.ByteLevel())
    token_bytes = TokenBytes(backend, frozenset([0]))

    assert [token_bytes[i] for i in (0, 1, 2, -1, 2**40)] == [b"", b"b", b"", b"", b""]


def test_added_token_is_written_as_it_reads() -> None:
    """A token with characters outside the byte alphabet is text."""
    token_bytes = TokenBytes(_backend(["<≠>"], decoders.ByteLevel()), frozenset())

    assert token_bytes[0] == "<≠>".encode()


def test_rules_of_both_families() -> None:
    """Byte-level and SentencePiece decoders are understood."""
    byte_level = _backend(["a"], decoders.ByteLevel())
    stripping = _backend(["a"], _sentencepiece(decoders.Strip(content=" ", left=1)))
    plain = _backend(["a"], _sentencepiece())

    assert read_decoding_rules(byte_level) == DecodingRules(is_byte_level=True)
    assert read_decoding_rules(stripping) == DecodingRules(False, "▁", strip_left=1)
    assert read_decoding_rules(plain) == DecodingRules(False, "▁", strip_left=0)


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (None, "none"),
        (_sentencepiece(decoders.Strip(content=" ", left=1, right=1)), "Strip"),
        (_sentencepiece(decoders.Strip(content="_", left=1)), "Strip"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()]), "Replace + Fuse"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: decoders.Decoder | None, name: str) -> None:
    """A decoder whose text cannot be streamed exactly is refused."""
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder

    with pytest.raises(UnsupportedModelError, match=re.escape(name)) as refusal:
        read_decoding_rules(backend)
    assert "ByteLevel" in refusal.value.known
