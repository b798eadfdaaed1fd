"""Options of `nanoserve bench boot`: frozen, checked once; the flags are made from them."""

from dataclasses import dataclass, field
from typing import Any

from nanoserve.errors import OptionError
from nanoserve.options import DEFAULT_CAPTURE_LIMIT, Device

_MAX_REPEAT = 1000  # boots: hours
_MAX_COUNT = 10**12  # of requests or tokens: more than any machine's


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class BootBenchOptions:
    """What `nanoserve bench boot` plans and boots; `help` of each field is its meaning."""

    device: Device = _option("auto", "whose recordings: cpu, cuda, or auto (cuda if there is one)")
    num_heads: int | None = _option(
        None, "query heads, instead of those of a model's headers; with --device cuda"
    )
    max_num_seqs: str = _option("8,16,32,64,256", "requests at once, with commas between")
    max_model_len: str = _option("2048,4096,8192", "longest requests in tokens, with commas")
    capture_limit: int = _option(DEFAULT_CAPTURE_LIMIT, "most graphs held at once")
    csv: str | None = _option(None, "file that gets every figure of the tables")
    repeat: int = _option(0, "boot the model this often, with the first of both lists")

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            OptionError: Names the flag, its value and what is allowed.
        """
        parse_counts("--max-num-seqs", self.max_num_seqs)
        parse_counts("--max-model-len", self.max_model_len)
        for flag, value, low in (
            ("--num-heads", self.num_heads, 1),
            ("--capture-limit", self.capture_limit, 1),
            ("--repeat", self.repeat, 0),
        ):
            if value is not None and value < low:
                message = f"{flag} is {value}; it must be at least {low}."
                raise OptionError(message)
        if self.repeat > _MAX_REPEAT:
            message = f"--repeat is {self.repeat:,}; it must be at most {_MAX_REPEAT:,}."
            raise OptionError(message)

    @property
    def request_counts(self) -> tuple[int, ...]:
        """`max_num_seqs` as numbers."""
        return parse_counts("--max-num-seqs", self.max_num_seqs)

    @property
    def lengths(self) -> tuple[int, ...]:
        """`max_model_len` as numbers."""
        return parse_counts("--max-model-len", self.max_model_len)


def parse_counts(flag: str, text: str) -> tuple[int, ...]:
    """Read numbers with commas between them: `8,16` is (8, 16).

    Raises:
        OptionError: Names the flag.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) <= _MAX_COUNT for word in words):
        message = (
            f"{flag} is {text!r:.80}; it must be numbers from 1 to {_MAX_COUNT:,} with commas "
            "between: 8,16,32."
        )
        raise OptionError(message)
    return tuple(int(word) for word in words)
