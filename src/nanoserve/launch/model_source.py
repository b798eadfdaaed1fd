"""What is read of a model before anything is decided: its shape, tokenizer and template."""

from dataclasses import dataclass

from nanoserve.errors import CorruptFileError
from nanoserve.spec.checkpoint import Checkpoint, read_checkpoint
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.param_count import count_parameters
from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.tokenizer import Tokenizer, tokenizer_from_folder


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it lies on disk; no weight of it is loaded.

    Attributes:
        checkpoint: Files, shape and stop ids.
        tokenizer: The model's own.
        chat_template: None where the model has none.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def describe(self) -> str:
        """Return one line for people."""
        spec = self.checkpoint.spec
        num_parameters = count_parameters(spec).total
        name = self.checkpoint.source.path.name
        return f"{name}: {spec.architecture}, {num_parameters:,} parameters"


def read_model(name: str) -> ModelSource:
    """Find a model's files and read all of them but the weights.

    Args:
        name: Preset name, local folder, .gguf file or hub id.

    Raises:
        ModelError: The model cannot be read or is not supported.
    """
    checkpoint = read_checkpoint(resolve_model(name))
    tokenizer = _read_tokenizer(checkpoint)
    return ModelSource(checkpoint, tokenizer, _read_chat_template(tokenizer))


def _read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    path, num_rows = checkpoint.source.path, checkpoint.spec.vocab_size
    if checkpoint.gguf is not None:
        tokenizer = tokenizer_from_gguf(checkpoint.gguf.metadata, str(path))
    else:
        tokenizer = tokenizer_from_folder(path)
    if tokenizer.base_vocab_size > num_rows:  # a token added without a row costs its prompts
        problem = (
            f"the tokenizer has {tokenizer.base_vocab_size:,} tokens and the model "
            f"{num_rows:,}: they do not belong together."
        )
        raise CorruptFileError(str(path), problem)
    return tokenizer


def _read_chat_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    if tokenizer.chat_template is None:
        return None
    return ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
