"""From token ids to text: the bytes of each token, and the stream that joins them.

A token stands for bytes and a character may need several tokens, so text is made by joining
bytes and decoding UTF-8 incrementally. One answer and a stream of it go through the same
rules, which is why they are equal. Knows no model file; `tokenizer` builds these.
"""

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from nanoserve.errors import UnsupportedModelError

_REPLACEMENT = "\ufffd"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of a stray byte
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_KNOWN_DECODERS = ("ByteLevel", "Replace + ByteFallback + Fuse, with or without Strip")


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """How a tokenizer spells bytes in its tokens.

    Attributes:
        is_byte_level: GPT-2's alphabet, one printable character per byte; otherwise
            SentencePiece's, where `space` is a blank and `<0xE2>` a byte.
        space: The character that stands for a blank; SentencePiece only.
        strip_left: Blanks dropped from the start of the text; SentencePiece only.
    """

    is_byte_level: bool
    space: str = ""
    strip_left: int = 0


def read_decoding_rules(backend: Backend) -> DecodingRules:
    """Read the rules out of a tokenizer's decoder.

    Raises:
        UnsupportedModelError: A decoder of another family.
    """
    state = backend.decoder.__getstate__() if backend.decoder else b'{"type": "none"}'
    decoder: dict[str, Any] = json.loads(state)
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecodingRules(is_byte_level=True)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]):
        rules = _sentencepiece_rules(steps)
        if rules is not None:
            return rules
    what = f"The tokenizer's decoder is {' + '.join(kinds)}, which is not supported as it stands."
    raise UnsupportedModelError(what, _KNOWN_DECODERS)


def _sentencepiece_rules(steps: list[dict[str, Any]]) -> DecodingRules | None:
    space = steps[0]["pattern"].get("String")
    no_strip: dict[str, Any] = {"content": " ", "start": 0, "stop": 0}
    strip = steps[3] if len(steps) > 3 else no_strip
    if not space or steps[0]["content"] != " " or strip["content"] != " " or strip["stop"]:
        return None
    return DecodingRules(is_byte_level=False, space=space, strip_left=strip["start"])


class TokenBytes:
    """The bytes each token id stands for, looked up once and kept.

    Skipped are ids outside the vocabulary and, if asked, special tokens: they stand for
    no bytes. Shared by all streams of one tokenizer; at most one entry per vocabulary id.
    """

    def __init__(self, backend: Backend, skipped_ids: frozenset[int]) -> None:
        self.rules = read_decoding_rules(backend)
        self._backend = backend
        self._bytes_by_id = dict.fromkeys(skipped_ids, b"")

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of `token_id`; b"" where it is skipped or unknown."""
        found = self._bytes_by_id.get(token_id)
        return self._look_up(token_id) if found is None else found

    def _look_up(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b""
        spelled = _unspell_byte_level if self.rules.is_byte_level else self._unspell_sentencepiece
        token_bytes = self._bytes_by_id[token_id] = spelled(token)
        return token_bytes

    def _unspell_sentencepiece(self, token: str) -> bytes:
        byte_token = _BYTE_TOKEN.fullmatch(token)
        if byte_token:
            return bytes([int(byte_token[1], 16)])
        return token.replace(self.rules.space, " ").encode()


class DetokenizerStream:
    """Turns token ids into text one at a time, never splitting a character.

    Held back are the at most three bytes of a character that is not complete. Bytes that can
    never become one are shown at once as U+FFFD: one for each broken sequence in a byte-level
    tokenizer, one for each byte with SentencePiece, as SentencePiece itself does.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._is_byte_level = token_bytes.rules.is_byte_level
        self._blanks_to_strip = token_bytes.rules.strip_left
        errors = "replace" if self._is_byte_level else "surrogateescape"
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, token_id: int) -> str:
        """Return the text that is now certain; '' while a character is unfinished."""
        return self._show(self._utf8.decode(self._token_bytes[token_id]))

    def flush(self) -> str:
        """Return what was held back, which is not a character: U+FFFD, or ''."""
        return self._show(self._utf8.decode(b"", final=True))

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the whole text of `token_ids`: what pushing each, then flushing, would give."""
        joined = b"".join([self._token_bytes[token_id] for token_id in token_ids])
        return self._show(self._utf8.decode(joined, final=True))

    def _show(self, text: str) -> str:
        if self._blanks_to_strip and text:
            text = self._strip_start(text)
        if self._is_byte_level or text.isascii():
            return text
        return _ESCAPED_BYTE.sub(_REPLACEMENT, text)

    def _strip_start(self, text: str) -> str:
        num_blanks = min(len(text) - len(text.lstrip(" ")), self._blanks_to_strip)
        self._blanks_to_strip = self._blanks_to_strip - num_blanks if num_blanks == len(text) else 0
        return text[num_blanks:]


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet.

    Printable Latin-1 bytes are spelled as themselves, the other 68 from U+0100 up.

    Source: `bytes_to_unicode` in openai/gpt-2, src/encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def _unspell_byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:  # an added token, written as it reads
        return token.encode()
