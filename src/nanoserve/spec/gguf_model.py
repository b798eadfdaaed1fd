"""A .gguf file to `PlannedModel`: shape, bytes and average bits from its header."""

from collections import Counter
from pathlib import Path

from nanoserve.spec.gguf_file import GGUFFile, read_gguf
from nanoserve.spec.gguf_shape import model_shape_of_gguf
from nanoserve.spec.planned_model import PlannedModel
from nanoserve.spec.quant_spec import WeightFormat, file_bits_format


def gguf_model(path: Path) -> PlannedModel:
    """Return the model of a .gguf file, its weights to the byte.

    Raises:
        UnsupportedModelError: An architecture or a key that is not known.
        CorruptFileError: The header contradicts itself.
    """
    file = read_gguf(path)
    return PlannedModel(
        name=path.name,
        shape=model_shape_of_gguf(file),
        weight_format=_average_format(file),
        weight_source="GGUF header",
        file_bytes=sum(tensor.num_bytes for tensor in file.tensors.values()),
        quant_method="gguf",
        path=str(path),
        gguf=file,
    )


def _average_format(file: GGUFFile) -> WeightFormat:
    """Return the average bits of a GGUF file as a format, named by the type most bytes are in."""
    num_bytes: Counter[str] = Counter()
    num_values = 0
    for tensor in file.tensors.values():
        num_bytes[tensor.type_name] += tensor.num_bytes
        values = 1
        for size in tensor.shape:
            values *= size
        num_values += values
    name = num_bytes.most_common(1)[0][0] if num_bytes else "GGUF"
    bits = 8 * sum(num_bytes.values()) / num_values if num_values else 16.0
    return file_bits_format(name, bits)
