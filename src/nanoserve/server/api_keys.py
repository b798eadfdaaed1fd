"""Where API keys come from: a file, or the environment."""

import re
from collections.abc import Mapping
from pathlib import Path

from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError

KEYS_VARIABLE = "NANOSERVE_API_KEYS"
_KEY = re.compile(r"[!-+\--~]{8,512}")  # printable ASCII without blank and comma


def read_api_keys(path: str | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the valid keys, those of the file and those of the environment; none is open.

    Args:
        path: A file with one key a line; blank lines and lines that begin with # are none.
        environment: `NANOSERVE_API_KEYS` holds keys parted by commas.

    Raises:
        OptionError: The file cannot be read or has no key, or a key is no key.
    """
    listed = environment.get(KEYS_VARIABLE, "").split(",")
    keys = [key.strip() for key in listed if key.strip()]
    if path is not None:
        keys += _keys_in(path)
    for number, key in enumerate(keys, start=1):
        if not _KEY.fullmatch(key):
            message = (
                f"API key {number} of {len(keys)} cannot be used: a key has 8 to 512 printable "
                "ASCII characters, and no blank or comma."
            )
            raise OptionError(message)
    return tuple(dict.fromkeys(keys))


def _keys_in(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = (
            f"--api-key-file {path} cannot be read: {reason_of(error)}. "
            "Give a file with one key a line."
        )
        raise OptionError(message) from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        message = f"--api-key-file {path} has no key. Write one a line."
        raise OptionError(message)
    return keys
