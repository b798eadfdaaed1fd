"""Which architecture a GGUF file says it is of, and the fields of its metadata.

Source: gguf-py 0.19, constants.py, for the keys' names.
"""

from collections.abc import Collection

from nanoserve.errors import UnsupportedModelError
from nanoserve.spec.config_fields import MAX_LAYERS, ConfigFields
from nanoserve.spec.gguf_file import GGUFFile


def architecture_fields(
    file: GGUFFile, known: Collection[str], refused: Collection[str], why: str
) -> tuple[str, ConfigFields]:
    """Return the architecture, and the fields whose keys begin with its name.

    Args:
        file: Whole: a model that was split into several files is refused.
        known: Architectures that can be read.
        refused: Fields that must be absent, zero or false.
        why: Says of a refused field what is not known of it.

    Raises:
        UnsupportedModelError: An architecture that is not known, or a refused field; the key
            is named.
        CorruptFileError: A key is missing, of the wrong type, or out of bounds.
    """
    path = str(file.path)
    common = ConfigFields(file.metadata, path)
    architecture = common.text("general.architecture")
    if architecture not in known:
        what = f"{path} is of architecture {architecture[:80]}."
        raise UnsupportedModelError(what, tuple(known))
    if common.size("split.count", MAX_LAYERS, 1, low=0) > 1:
        common.fail_unsupported("split.count", "join the parts with llama-gguf-split --merge.")
    fields = ConfigFields(file.metadata, path, f"{architecture}.")
    for key in refused:
        if fields.raw(key):
            fields.fail_unsupported(key, why)
    return architecture, fields
