"""`tokenizer_from_gguf`: the tokenizer that a GGUF file's metadata describes.

Owns the reading of the `tokenizer.*` keys. The rules follow transformers 5's own conversion
(`transformers/integrations/gguf`), so that both give the same ids for one file; where this
module departs from it, it says so. Knows no file format; `spec` reads the metadata.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.text.detokenizer import BYTE_ALPHABET
from nanoserve.text.tokenizer import Tokenizer

_SPACE = "\u2581"  # SentencePiece's blank
_SPELLING = {byte: char for char, byte in BYTE_ALPHABET.items()}

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is cut before merging, by `tokenizer.ggml.pre`; None is GPT-2's own rule.
# NOTE: SmolLM was trained with digits cut off first (llama.cpp does so), which keeps "\n\n"
# and "  " before a digit whole. transformers cuts such files by GPT-2's rule, and so do we.
_SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": _TEKKEN_SPLIT,
}

_T = TypeVar("_T")


class _TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`. Source: `llama_token_type` in llama.cpp."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def tokenizer_from_gguf(metadata: dict[str, Any], path: str = "The GGUF file") -> Tokenizer:
    """Rebuild the tokenizer of a GGUF file.

    BOS is added as `add_bos_token` says; without that key, SentencePiece vocabularies add it
    and byte-level ones do not. Unlike transformers, `add_space_prefix` is honoured, and
    control and user-defined tokens outside the byte alphabet keep their ids.

    Args:
        metadata: The file's key-value pairs as Python values: str, int, float, bool and lists.
        path: The file's name, for messages.

    Raises:
        UnsupportedModelError: Another kind of tokenizer, or of pre-tokenizer, by name.
        CorruptFileError: A key is missing, of the wrong type, or contradicts another.
    """
    keys = _Keys(metadata, path)
    model = keys.need("ggml.model", str)
    if model not in _BUILDERS:
        what = f"tokenizer.ggml.model in {path} is {model!r}, which is not supported."
        raise UnsupportedModelError(what, tuple(_BUILDERS))
    vocabulary = _read_vocabulary(keys)
    backend = _BUILDERS[model](keys, vocabulary)
    bos, eos, *others = (
        _named_token(keys, vocabulary, f"ggml.{name}_token_id")
        for name in ("bos", "eos", "unknown", "padding")
    )
    _add_tokens(backend, vocabulary, [bos, eos, *others])
    add_bos = keys.read("ggml.add_bos_token", bool, default=model == "llama")
    add_eos = keys.read("ggml.add_eos_token", bool, default=False)
    backend.post_processor = _frame(backend, bos if add_bos else None, eos if add_eos else None)
    template = keys.read("chat_template", str)
    return Tokenizer(backend, bos_token=bos, eos_token=eos, chat_template=template)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed access to the `tokenizer.*` keys; every refusal names the key."""

    metadata: dict[str, Any]
    path: str

    def read(self, key: str, kind: type[_T], default: _T | None = None) -> _T | None:
        value = self.metadata.get(f"tokenizer.{key}", default)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.refuse(key, f"is a {type(value).__name__}, not a {kind.__name__}.")
        return value

    def need(self, key: str, kind: type[_T]) -> _T:
        value = self.read(key, kind)
        if value is None:
            self.refuse(key, "is missing.")
        return value

    def read_list(self, key: str, kind: type[_T], length: int | None = None) -> list[_T] | None:
        values = self.read(key, list)
        if values is None:
            return None
        if not all(isinstance(value, kind) for value in values):
            self.refuse(key, f"holds values that are not {kind.__name__}.")
        if length is not None and len(values) != length:
            self.refuse(key, f"has {len(values):,} entries for {length:,} tokens.")
        return values

    def refuse(self, key: str, problem: str, cause: Exception | None = None) -> NoReturn:
        raise CorruptFileError(self.path, f"tokenizer.{key} {problem}") from cause


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Tokens as the file spells them, by id, and the type of each."""

    tokens: list[str]
    types: list[int]

    def of_type(self, kind: _TokenType) -> list[str]:
        return [
            token for token, value in zip(self.tokens, self.types, strict=True) if value == kind
        ]


def _read_vocabulary(keys: _Keys) -> _Vocabulary:
    tokens = keys.read_list("ggml.tokens", str)
    if not tokens:
        keys.refuse("ggml.tokens", "is missing or empty.")
    types = keys.read_list("ggml.token_type", int, length=len(tokens))
    return _Vocabulary(tokens, types or [_TokenType.NORMAL] * len(tokens))


def _byte_level_backend(keys: _Keys, vocabulary: _Vocabulary) -> Backend:
    pre = keys.read("ggml.pre", str, default="default") or ""
    if pre not in _SPLITS:
        what = f"tokenizer.ggml.pre in {keys.path} is {pre!r}, which is not supported."
        raise UnsupportedModelError(what, tuple(_SPLITS))
    merges = _parse_merges(keys, keys.need("ggml.merges", list))
    alphabet = frozenset(BYTE_ALPHABET)
    written = {
        *vocabulary.of_type(_TokenType.CONTROL),
        *vocabulary.of_type(_TokenType.USER_DEFINED),
    }
    ids = {
        token if token in written or alphabet.issuperset(token) else _spell(token): token_id
        for token_id, token in enumerate(vocabulary.tokens)
    }
    backend = Backend(_bpe(keys, ids, merges))
    backend.pre_tokenizer = _byte_level_split(_SPLITS[pre])
    backend.decoder = decoders.ByteLevel()
    return backend


def _spell(token: str) -> str:
    return "".join(_SPELLING[byte] for byte in token.encode())


def _byte_level_split(split: str | None) -> pre_tokenizers.PreTokenizer:
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _sentencepiece_backend(keys: _Keys, vocabulary: _Vocabulary) -> Backend:
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    listed = keys.read("ggml.merges", list)
    if listed is None:
        scores = keys.read_list("ggml.scores", float, length=len(vocabulary.tokens))
        if scores is None:
            keys.refuse("ggml.scores", "is missing, and there are no merges either.")
        merges = _merges_from_scores(ids, dict(zip(vocabulary.tokens, scores, strict=True)))
    else:
        merges = _parse_merges(keys, listed)
    backend = Backend(_bpe(keys, ids, merges, byte_fallback=True, fuse_unk=True))
    has_prefix = keys.read("ggml.add_space_prefix", bool, default=True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if has_prefix else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(content=" ", left=1)] if has_prefix else []
    backend.decoder = decoders.Sequence([*steps, *strip])
    return backend


def _merges_from_scores(ids: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Recover the order of merges: every way to split a token in two, best token first.

    Source: `generate_merges` in transformers 5, whose order among equals this keeps.
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, score in scores.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        ranked.extend((score, len(left), len(right), left, right) for left, right in known)
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    return [(left, right) for _, _, _, left, right in ranked]


def _parse_merges(keys: _Keys, merges: list[Any]) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, blank, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
        if not (left and blank and right) or " " in right:
            keys.refuse("ggml.merges", f"has {merge!r}, which is not two tokens.")
        pairs.append((left, right))
    return pairs


def _bpe(
    keys: _Keys, ids: dict[str, int], merges: list[tuple[str, str]], **flags: bool
) -> models.BPE:
    try:
        return models.BPE(vocab=ids, merges=merges, **flags)
    except Exception as error:  # the Rust side raises a bare Exception, nothing narrower
        keys.refuse("ggml.merges", f"does not fit ggml.tokens ({error}).", error)


def _named_token(keys: _Keys, vocabulary: _Vocabulary, key: str) -> str | None:
    token_id = keys.read(key, int)
    if token_id is None:
        return None
    if not 0 <= token_id < len(vocabulary.tokens):
        keys.refuse(key, f"is {token_id}, outside the {len(vocabulary.tokens):,} tokens.")
    return vocabulary.tokens[token_id]


def _add_tokens(backend: Backend, vocabulary: _Vocabulary, named: list[str | None]) -> None:
    """Have control, user-defined and named tokens matched whole; all but the second special."""
    special = dict.fromkeys([*vocabulary.of_type(_TokenType.CONTROL), *filter(None, named)])
    plain = vocabulary.of_type(_TokenType.USER_DEFINED)
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])


def _frame(backend: Backend, bos: str | None, eos: str | None) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=[*filter(None, [bos]), "$A", *filter(None, [eos])],
        pair=["$A", "$B:1"],
        special_tokens=[(token, backend.token_to_id(token)) for token in (bos, eos) if token],
    )


_BUILDERS = {"gpt2": _byte_level_backend, "llama": _sentencepiece_backend}
