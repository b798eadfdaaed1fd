"""`Tokenizer`: text to token ids and back, and how it is read from a model folder.

It has the shape the engine asks of a text codec. GGUF files are read by `gguf_tokenizer`.
Text is decoded without `clean_up_tokenization_spaces`: removing blanks before punctuation
needs text that a stream has shown already, and spoils what byte-level models write.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from nanoserve.error_reasons import reason_of
from nanoserve.errors import CorruptFileError, InvalidRequestError, ModelNotFoundError
from nanoserve.spec.json_file import read_json_object
from nanoserve.text.detokenizer import DetokenizerStream, TokenBytes

_CONFIG = "tokenizer_config.json"
_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """A tokenizer with its special tokens and chat template.

    Attributes:
        bos_token: Token that begins a text, if the model has one; also in templates.
        eos_token: Token that ends a text, if the model has one; also in templates.
        chat_template: Jinja source, or None: then the model cannot chat.
        vocab_size: Number of token ids, added tokens included: the highest id plus one.
        base_vocab_size: The same without the added tokens.
        longest_token_chars: Characters of the longest token, as the vocabulary spells it.
        special_token_ids: Ids that decoding skips by default.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        added_tokens = backend.get_added_tokens_decoder()
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.chat_template = chat_template
        vocabulary = backend.get_vocab()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        base_vocabulary = backend.get_vocab(with_added_tokens=False)
        self.base_vocab_size = max(base_vocabulary.values(), default=-1) + 1
        self.longest_token_chars = max(map(len, vocabulary), default=1)
        self.special_token_ids = frozenset(
            token_id for token_id, token in added_tokens.items() if token.special
        )
        self._backend = backend
        self._text_bytes = TokenBytes(backend, self.special_token_ids)
        self._all_bytes = TokenBytes(backend, frozenset())

    @property
    def bos_token_id(self) -> int | None:
        """Id of `bos_token`, if there is one."""
        return None if self.bos_token is None else self._backend.token_to_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """Id of `eos_token`, if there is one."""
        return None if self.eos_token is None else self._backend.token_to_id(self.eos_token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, with BOS where the tokenizer adds one.

        Special tokens written out in `text` become their ids. Other threads run meanwhile:
        the backend's `encode` would keep the interpreter locked, its batches do not.

        Raises:
            InvalidRequestError: The text holds half a surrogate pair, which no bytes spell.
        """
        try:
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            return encoding.ids
        except TypeError:  # how the backend refuses text that is not UTF-8
            message = "The text holds a lone surrogate, which is not a character. Remove it."
            raise InvalidRequestError(message) from None

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids outside the vocabulary stand for nothing."""
        token_bytes = self._text_bytes if skip_special_tokens else self._all_bytes
        return DetokenizerStream(token_bytes).push_all(token_ids)

    def decode_stream(self) -> DetokenizerStream:
        """Return a new incremental decoder that skips special tokens."""
        return DetokenizerStream(self._text_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for, special tokens written out."""
        return self._all_bytes[token_id]


def tokenizer_from_folder(path: str | Path) -> Tokenizer:
    """Read a Hugging Face model folder.

    `tokenizer.json` alone decides whether BOS is added; `add_bos_token` in
    `tokenizer_config.json` is not read, as in transformers 5. Special tokens come from
    `tokenizer_config.json`, or from `special_tokens_map.json` where the config lists no
    added tokens. A `chat_template.jinja` goes before the template in the config.

    Raises:
        ModelNotFoundError: No `tokenizer.json`.
        CorruptFileError: A file is not what its name says.
        UnsupportedModelError: A tokenizer of another family.
    """
    folder = Path(path)
    config = _read_config(folder)
    backend = _read_backend(folder / "tokenizer.json")
    _mark_special_tokens(backend, config, folder / _CONFIG)
    return Tokenizer(
        backend,
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
        chat_template=_read_chat_template(folder, config),
    )


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        message = (
            f"{path} does not exist, and a model folder is tokenised by that file. "
            "Convert the tokenizer with transformers' save_pretrained, or use a GGUF file."
        )
        raise ModelNotFoundError(message)
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the Rust side raises a bare Exception, nothing narrower
        problem = f"it is not a tokenizer ({error})."
        raise CorruptFileError(str(path), problem) from error


def _read_config(folder: Path) -> dict[str, Any]:
    config = _read_optional(folder / _CONFIG)
    if "added_tokens_decoder" not in config:
        config |= _read_optional(folder / "special_tokens_map.json")
    return config


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _mark_special_tokens(backend: Backend, config: dict[str, Any], path: Path) -> None:
    """Make special what the config calls so, adding tokens that tokenizer.json lacks."""
    _add_listed_tokens(backend, config.get("added_tokens_decoder") or {}, path)
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if not isinstance(extra, list | dict):
        raise CorruptFileError(str(path), f"extra_special_tokens is {extra!r}, not a list.")
    named = [config.get(name) for name in _NAMED_TOKENS]
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for entry in [*named, *(extra.values() if isinstance(extra, dict) else extra)]:
        text = _token_text(entry)
        if text is not None:
            backend.add_special_tokens([known.get(text) or AddedToken(text, normalized=False)])


def _add_listed_tokens(backend: Backend, listed: Any, path: Path) -> None:
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    try:
        tokens = [AddedToken(**listed[key]) for key in sorted(listed, key=int)]
    except (TypeError, ValueError, LookupError) as error:
        problem = f"added_tokens_decoder has an entry that is not a token ({error})."
        raise CorruptFileError(str(path), problem) from error
    for token in tokens:
        if token.content not in known:
            add = backend.add_special_tokens if token.special else backend.add_tokens
            add([token])


def _token_text(entry: Any) -> str | None:
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else None


def _read_chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((e.get("template") for e in named if e.get("name") == "default"), None)
    if template is None or isinstance(template, str):
        return template
    problem = f"chat_template is a {type(template).__name__}, not text."
    raise CorruptFileError(str(folder / _CONFIG), problem)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFileError(str(path), f"it cannot be read ({reason_of(error)}).") from error
