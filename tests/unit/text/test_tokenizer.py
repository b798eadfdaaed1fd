"""Text to token ids and back, and model folders."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from nanoserve.errors import (
    CorruptFileError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from nanoserve.text.detokenizer import BYTE_ALPHABET
from nanoserve.text.tokenizer import Tokenizer, tokenizer_from_folder

_BOS, _EOS, _END = 256, 257, 258


def _backend() -> Backend:
    """One token per byte, ids in the alphabet's order; <s> is added, </s> and <end> are known."""
    backend = Backend(
        models.BPE(vocab={char: i for i, char in enumerate(BYTE_ALPHABET)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<end>", normalized=False)])
    backend.post_processor = TemplateProcessing(
        single="<s> $A", pair="$A $B", special_tokens=[("<s>", _BOS)]
    )
    return backend


def _folder(path: Path, backend: Backend | None = None, **files: Any) -> Path:
    (backend or _backend()).save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def test_bos_is_added_only_when_asked() -> None:
    """`add_special_tokens=False` leaves BOS away."""
    tokenizer = Tokenizer(_backend())

    assert tokenizer.encode("a") == [_BOS, *tokenizer.encode("a", add_special_tokens=False)]


def test_special_tokens_in_text_become_ids() -> None:
    """A special token written out is its id."""
    token_ids = Tokenizer(_backend()).encode("a</s>", add_special_tokens=False)

    assert token_ids[1:] == [_EOS]


def test_special_tokens_are_skipped_unless_asked_for() -> None:
    """Decoding leaves special tokens out, or writes them."""
    tokenizer = Tokenizer(_backend())
    token_ids = tokenizer.encode("a</s><end>")

    assert tokenizer.decode(token_ids) == "a<end>"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "<s>a</s><end>"


def test_stream_skips_special_tokens() -> None:
    """A stream shows what `decode` does."""
    tokenizer = Tokenizer(_backend())
    stream = tokenizer.decode_stream()

    shown = [stream.push(token_id) for token_id in tokenizer.encode("é</s>!")]

    assert shown == ["", "", "é", "", "!"]


def test_vocabulary_counts_added_tokens() -> None:
    """The vocabulary has 256 bytes and three added tokens."""
    tokenizer = Tokenizer(_backend(), bos_token="<s>", eos_token="</s>")

    assert tokenizer.vocab_size == 259
    assert tokenizer.special_token_ids == {_BOS, _EOS}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (_BOS, _EOS)


def test_base_vocabulary_leaves_added_tokens_out() -> None:
    """Added tokens count only in the whole vocabulary."""
    assert Tokenizer(_backend()).base_vocab_size == 256


def test_tokenizer_without_named_tokens() -> None:
    """BOS and EOS may be missing."""
    tokenizer = Tokenizer(_backend())

    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)


def test_bytes_of_one_token() -> None:
    """One token's bytes may be part of a character; special tokens are written out."""
    tokenizer = Tokenizer(_backend())
    first, second = tokenizer.encode("é", add_special_tokens=False)

    assert tokenizer.token_bytes(first) + tokenizer.token_bytes(second) == "é".encode()
    assert tokenizer.token_bytes(_EOS) == b"</s>"


def test_lone_surrogate_is_the_clients_error() -> None:
    """Text that no bytes spell is refused."""
    with pytest.raises(InvalidRequestError, match="surrogate"):
        Tokenizer(_backend()).encode("a\ud800b")


def test_truncation_and_padding_of_the_file_are_off() -> None:
    """A tokenizer saved with a length still encodes the whole text, and no more."""
    backend = _backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)

    assert len(Tokenizer(backend).encode("a" * 10)) == 11


def test_folder_with_all_files(tmp_path: Path) -> None:
    """Special tokens and template come from tokenizer_config.json."""
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "<end>",
        "chat_template": "{{ 1 }}",
        "added_tokens_decoder": {"256": {"content": "<s>", "special": True}},
    }

    tokenizer = tokenizer_from_folder(_folder(tmp_path, tokenizer_config=config))

    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "<end>")
    assert tokenizer.special_token_ids == {_BOS, _EOS, _END}
    assert tokenizer.chat_template == "{{ 1 }}"


def test_folder_with_tokenizer_json_alone(tmp_path: Path) -> None:
    """tokenizer.json is enough to turn text into ids."""
    tokenizer = tokenizer_from_folder(_folder(tmp_path))

    assert tokenizer.encode("a")[0] == _BOS
    assert (tokenizer.bos_token, tokenizer.chat_template) == (None, None)


def test_add_bos_token_in_the_config_is_not_read(tmp_path: Path) -> None:
    """The post-processor in tokenizer.json decides about BOS."""
    folder = _folder(tmp_path, tokenizer_config={"add_bos_token": False, "bos_token": "<s>"})

    assert tokenizer_from_folder(folder).encode("a")[0] == _BOS


def test_special_tokens_map_serves_old_folders(tmp_path: Path) -> None:
    """Where the config lists no added tokens, special_tokens_map.json counts."""
    folder = _folder(
        tmp_path,
        tokenizer_config={"eos_token": "</s>"},
        special_tokens_map={"eos_token": {"content": "<end>"}},
    )

    assert tokenizer_from_folder(folder).eos_token == "<end>"


def test_special_tokens_map_yields_to_listed_tokens(tmp_path: Path) -> None:
    """Where the config lists added tokens, special_tokens_map.json is not read."""
    folder = _folder(
        tmp_path,
        tokenizer_config={"eos_token": "</s>", "added_tokens_decoder": {}},
        special_tokens_map={"eos_token": "<end>"},
    )

    assert tokenizer_from_folder(folder).eos_token == "</s>"


@pytest.mark.parametrize("extra", [["<x>", "<end>"], {"image": "<x>", "stop": "<end>"}])
def test_extra_special_tokens_are_special(tmp_path: Path, extra: Any) -> None:
    """Tokens the config calls special are, new ones included."""
    folder = _folder(tmp_path, tokenizer_config={"extra_special_tokens": extra})

    tokenizer = tokenizer_from_folder(folder)

    assert tokenizer.special_token_ids == {_BOS, _EOS, _END, 259}
    assert tokenizer.encode("<x>") == [_BOS, 259]


def test_listed_tokens_are_added(tmp_path: Path) -> None:
    """Tokens that only the config lists are added in the order of their ids."""
    listed = {
        "260": {"content": "<b>", "special": False},
        "259": {"content": "<a>", "special": True},
    }
    folder = _folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})

    tokenizer = tokenizer_from_folder(folder)

    assert tokenizer.encode("<a><b>") == [_BOS, 259, 260]
    assert tokenizer.special_token_ids == {_BOS, _EOS, 259}


def test_template_file_goes_first(tmp_path: Path) -> None:
    """chat_template.jinja goes before the config's template."""
    folder = _folder(tmp_path, tokenizer_config={"chat_template": "config"})
    (folder / "chat_template.jinja").write_text("file", encoding="utf-8")

    assert tokenizer_from_folder(folder).chat_template == "file"


@pytest.mark.parametrize(
    ("template", "chosen"),
    [
        ([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "rag", "template": "r"}], None),
        (None, None),
    ],
)
def test_default_of_named_templates(tmp_path: Path, template: Any, chosen: str | None) -> None:
    """Of several named templates `default` is taken."""
    folder = _folder(tmp_path, tokenizer_config={"chat_template": template})

    assert tokenizer_from_folder(folder).chat_template == chosen


def test_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    """The missing file is named."""
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json does not exist"):
        tokenizer_from_folder(tmp_path)


def test_broken_tokenizer_json_is_refused(tmp_path: Path) -> None:
    """A tokenizer.json that is none is named as damaged."""
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(CorruptFileError, match="is not a tokenizer"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "holds a list"),
        ('{"bos_token": "' + chr(92) + 'ud800"}', "surrogates"),
        ('{"added_tokens_decoder": {"x": {"content": "a"}}}', "not a token"),
        ('{"added_tokens_decoder": {"1": 2}}', "not a token"),
        ('{"added_tokens_decoder": [1]}', "not a token"),
        ('{"chat_template": 7}', "chat_template is a int"),
        ('{"extra_special_tokens": "<x>"}', "'<x>', not a list"),
    ],
)
def test_broken_config_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A tokenizer_config.json that cannot be read is named as damaged."""
    (_folder(tmp_path) / "tokenizer_config.json").write_text(text)

    with pytest.raises(CorruptFileError, match=problem) as refusal:
        tokenizer_from_folder(tmp_path)
    assert refusal.value.path.endswith("tokenizer_config.json")


def test_template_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """A template file that is not UTF-8 is named as damaged."""
    (_folder(tmp_path) / "chat_template.jinja").write_bytes(b"\xff")

    with pytest.raises(CorruptFileError, match="not UTF-8"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_unreadable_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file without permission is the file's fault, and named."""
    (_folder(tmp_path) / name).write_text("{}")

    def refuse(path: Path, *arguments: object, **options: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)

    with pytest.raises(CorruptFileError, match=rf"{name}.*cannot be read \(Permission denied"):
        tokenizer_from_folder(tmp_path)


def test_tokenizer_of_another_family_is_refused(tmp_path: Path) -> None:
    """A decoder we cannot stream is refused when the model is read."""
    backend = _backend()
    backend.decoder = decoders.WordPiece()

    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        tokenizer_from_folder(_folder(tmp_path, backend))
