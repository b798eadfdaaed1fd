"""A stream of tokens gives the text that decoding all of them at once gives."""

import functools
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.tokenizer import Tokenizer
from tests.text_models import CORPUS, sentencepiece_metadata, smollm2_metadata

_BYTE_TOKEN = re.compile("<0x(..)>")


@functools.cache
def _tokenizer(kind: str) -> Tokenizer:
    metadata = smollm2_metadata() if kind == "smollm2" else sentencepiece_metadata()
    return tokenizer_from_gguf(metadata)


def _backend(kind: str) -> Backend:
    return _tokenizer(kind)._backend


def _stream(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    stream = tokenizer.decode_stream()
    return "".join([stream.push(token_id) for token_id in token_ids]) + stream.flush()


@settings(max_examples=200, deadline=None)
@given(token_ids=st.lists(st.integers(0, 49_200), max_size=60))
def test_byte_level_stream_is_the_backends_text(token_ids: list[int]) -> None:
    """Any ids, special, unknown and broken ones included, stream to what the backend decodes."""
    expected = _backend("smollm2").decode(token_ids, skip_special_tokens=True)

    assert _stream(_tokenizer("smollm2"), token_ids) == expected
    assert _tokenizer("smollm2").decode(token_ids) == expected


@settings(max_examples=200, deadline=None)
@given(
    token_bytes=st.one_of(
        st.binary(max_size=40), st.text(max_size=12).map(str.encode), st.just(b"\xf0" * 200)
    )
)
def test_byte_level_stream_of_single_bytes(token_bytes: bytes) -> None:
    """Bytes one at a time, valid UTF-8 or not, stream to what the backend decodes."""
    tokenizer, backend = _tokenizer("smollm2"), _backend("smollm2")
    by_byte = {tokenizer.token_bytes(token_id): token_id for token_id in range(17, 300)}
    token_ids = [by_byte[bytes([byte])] for byte in token_bytes if bytes([byte]) in by_byte]

    assert _stream(tokenizer, token_ids) == backend.decode(token_ids)


def _in_words(token_ids: list[int]) -> str:
    """Decode as SentencePiece does, in another way: characters kept, stray bytes each U+FFFD."""
    run, text = b"", ""
    for token_id in token_ids:
        token = _backend("sentencepiece").id_to_token(token_id)
        byte_token = _BYTE_TOKEN.fullmatch(token or "")
        if byte_token:
            run += bytes.fromhex(byte_token[1])
        elif token and token_id not in _tokenizer("sentencepiece").special_token_ids:
            text, run = text + _by_characters(run) + token.replace("▁", " "), b""
    return (text + _by_characters(run)).removeprefix(" ")


def _by_characters(run: bytes) -> str:
    text = ""
    while run:
        for length in (1, 2, 3, 4):
            try:
                text, run = text + run[:length].decode(), run[length:]
                break
            except UnicodeDecodeError:
                continue
        else:
            text, run = text + "\ufffd", run[1:]
    return text


_BYTES_AND_OTHERS = st.lists(st.one_of(st.integers(0, 1000), st.integers(3, 258)), max_size=30)
_CHARACTERS = st.text(max_size=8).map(lambda text: [3 + byte for byte in text.encode()])


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.one_of(_BYTES_AND_OTHERS, _CHARACTERS), max_size=4))
def test_sentencepiece_stream_equals_batch(parts: list[list[int]]) -> None:
    """Stream, batch and a decoder written another way agree on any ids."""
    token_ids = [token_id for part in parts for token_id in part]
    tokenizer = _tokenizer("sentencepiece")

    assert _stream(tokenizer, token_ids) == tokenizer.decode(token_ids) == _in_words(token_ids)


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.one_of(_BYTES_AND_OTHERS, _CHARACTERS), max_size=4))
def test_sentencepiece_stream_is_the_backends_text(parts: list[list[int]]) -> None:
    """Where the backend's text has no U+FFFD, the stream is that text."""
    token_ids = [token_id for part in parts for token_id in part]
    expected = _backend("sentencepiece").decode(token_ids, skip_special_tokens=True)
    streamed = _stream(_tokenizer("sentencepiece"), token_ids)

    assert streamed == expected or "\ufffd" in expected
    assert "\ufffd" in expected or "\ufffd" not in streamed


@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.sampled_from(CORPUS)))
def test_encoded_text_streams_back(text: str) -> None:
    """A stream of encoded text is the backend's text; SmolLM2 spells all of the corpus."""
    if "<" in text:
        return
    for kind in ("smollm2", "sentencepiece"):
        tokenizer = _tokenizer(kind)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        streamed = _stream(tokenizer, token_ids)

        assert streamed == _backend(kind).decode(token_ids)
        if kind == "smollm2" and text in CORPUS:  # its vocabulary lacks some control bytes
            assert streamed == text
