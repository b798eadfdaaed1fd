"""Typed, bounded reads from a mapping that came out of a file, each error naming the key.

Knows nothing of any model family; `hf_config` and `gguf_spec` say which keys exist.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from nanoserve.errors import CorruptFileError, UnsupportedModelError

MAX_LAYERS = 4096  # the size limits refuse nonsense; the largest open models are 8 times under them
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24
MAX_CONTEXT_TOKENS = 1 << 31


class ConfigFields:
    """A mapping read key by key. Null counts as absent, as it does in config.json.

    Args:
        values: What the file holds; nothing about it is trusted.
        path: Where it came from; stands in every error.
        prefix: Put before each key, e.g. `llama.`.
        spellings: How the file spells a key, where errors should not say it our way.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        path: str,
        prefix: str = "",
        spellings: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._spellings = spellings or {}
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self._values.get(self._prefix + key) is not None

    def states(self, key: str) -> bool:
        """Whether the key is there at all, null included."""
        return self._prefix + key in self._values

    def spelled(self, key: str) -> str:
        """Return the key as the file has it."""
        return self._prefix + self._spellings.get(key, key)

    def raw(self, key: str) -> Any:
        """Return the value unchecked; None where absent."""
        self._read.add(key)
        return self._values.get(self._prefix + key)

    def skip(self, *keys: str) -> None:
        """Say that these keys are understood, and of no account here."""
        self._read.update(keys)

    def unread(self, keys: Iterable[str]) -> str | None:
        """Return the first of these keys that says something and was never asked for."""
        unread = (key for key in keys if key not in self._read)
        return next((key for key in unread if self._values.get(self._prefix + key)), None)

    @property
    def keys_read(self) -> tuple[str, ...]:
        """The keys that were asked for and are there, as the file has them, sorted."""
        return tuple(sorted(self.spelled(key) for key in self._read if self.has(key)))

    def size(self, key: str, limit: int, default: int | None = None, low: int = 1) -> int:
        """Return an integer from `low` to `limit`; without a default the key is required."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limit:
            raise self._refuse(key, value, f"an integer from {low:,} to {limit:,}")
        return value

    def number(self, key: str, default: float | None = None, low: float = 0.0) -> float:
        """Return a finite float of at least `low`; without a default the key is required."""
        value = self._required(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= 1e30:  # NaN fails both comparisons
            raise self._refuse(key, value, f"a finite number of at least {low:g}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite float above 0; without a default the key is required."""
        return self.number(key, default, low=math.ulp(0.0))

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self._refuse(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the key is required."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self._refuse(key, value, "a string")
        return value

    def section(self, key: str) -> "ConfigFields | None":
        """Return a nested mapping as fields of its own; None where absent or empty."""
        value = self.raw(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self._refuse(key, value, "an object")
        return ConfigFields(
            {f"{key}.{name}": item for name, item in value.items()}, self.path, f"{key}."
        )

    def fail_unsupported(self, key: str, why: str) -> NoReturn:
        """Raise for a key whose value asks for something not implemented."""
        shown = f"{self.spelled(key)} = {_shown(self.raw(key))}"
        message = f"{self.path} has {shown}: {why}"
        raise UnsupportedModelError(message)

    def fail_corrupt(self, problem: str) -> NoReturn:
        """Raise for values that contradict each other."""
        raise CorruptFileError(self.path, problem)

    def _required(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is not None:
            return value
        if default is None:
            raise CorruptFileError(self.path, f"the key {self.spelled(key)} is missing.")
        return default

    def _refuse(self, key: str, value: Any, expected: str) -> CorruptFileError:
        problem = f"{self.spelled(key)} is {_shown(value)}; expected {expected}."
        return CorruptFileError(self.path, problem)


def _shown(value: Any) -> str:
    """Return the value as a short text; a file may hold a megabyte under any key."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value):,}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
