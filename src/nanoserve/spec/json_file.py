"""JSON objects out of untrusted files: bounded, strict, and one kind of error.

NaN, Infinity and repeated keys are refused: JSON has no such numbers, and of two values
for one key a reader cannot know which was meant.
"""

import json
from pathlib import Path
from typing import Any, NoReturn

from nanoserve.error_reasons import reason_of
from nanoserve.errors import CorruptFileError
from nanoserve.units import MIB

_MAX_FILE_BYTES = 64 * MIB  # an index of a 1,000-shard model is 30 times under it


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CorruptFileError: The file cannot be read, is not strict JSON, or holds no object.
    """
    try:
        num_bytes = path.stat().st_size
        if num_bytes > _MAX_FILE_BYTES:
            raise CorruptFileError(str(path), f"{num_bytes:,} bytes; at most {_MAX_FILE_BYTES:,}.")
        content = path.read_bytes()
    except OSError as error:
        raise CorruptFileError(str(path), f"it cannot be read ({reason_of(error)}).") from None
    return parse_json_object(content, path)


def parse_json_object(content: bytes, path: Path, offset: int = 0) -> dict[str, Any]:
    """Return the object that is `content`, found `offset` bytes into `path`.

    Raises:
        CorruptFileError: It is not UTF-8, not strict JSON, or not an object.
    """
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
        )
        if b"\\ud" in content.lower():  # an escape that may be half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are ValueErrors
        raise CorruptFileError(str(path), f"it is not JSON ({error}).", offset) from None
    if not isinstance(value, dict):
        raise CorruptFileError(
            str(path), f"it holds a {type(value).__name__}, not an object.", offset
        )
    return value


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not a JSON number"
    raise ValueError(message)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        message = "a key is there twice"
        raise ValueError(message)
    return unique
