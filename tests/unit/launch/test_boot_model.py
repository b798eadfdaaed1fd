"""What is read of a model before its weights."""

from pathlib import Path

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.launch.boot_model import read_model
from tests.model_folders import BYTE_VOCAB_SIZE, write_byte_tokenizer, write_llama


def test_model_is_described_by_name_family_and_size(tmp_path: Path) -> None:
    """The line that a boot prints."""
    model = read_model(str(write_llama(tmp_path)))

    assert model.name == tmp_path.name
    assert model.describe() == f"{tmp_path.name}: llama, 31,904 parameters"
    assert model.chat_template is None


def test_tokenizer_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    """Text would become ids that have no embedding; both sizes are in the message."""
    write_llama(tmp_path)
    write_byte_tokenizer(tmp_path, BYTE_VOCAB_SIZE + 1)

    with pytest.raises(CorruptFileError, match="257 tokens and the model 256"):
        read_model(str(tmp_path))


def test_added_token_without_a_row_is_no_refusal(tmp_path: Path) -> None:
    """Fine-tunes ship such tokens; only a prompt that uses one is refused."""
    write_llama(tmp_path)
    write_byte_tokenizer(tmp_path, BYTE_VOCAB_SIZE, num_added=2)

    assert read_model(str(tmp_path)).tokenizer.vocab_size == BYTE_VOCAB_SIZE + 2
