"""Integers with a unit, and how they are printed. Knows nothing of models or devices."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SUFFIX_BYTES = {"": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB, "K": KIB, "M": MIB, "G": GIB}


def ceil_div(numerator: int, denominator: int) -> int:
    """Divide, rounding up. `ceil_div(0, n)` is 0."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple


def format_bytes(num_bytes: int) -> str:
    """Print bytes in GiB from 1 GiB up, in MiB below: `format_bytes(3 * GIB)` is '3.00 GiB'."""
    if abs(num_bytes) >= GIB:
        return f"{num_bytes / GIB:,.2f} GiB"
    return f"{num_bytes / MIB:.1f} MiB"


def parse_bytes(text: str) -> int:
    """Read a byte count: a plain integer, or a number with KiB, MiB, GiB, K, M or G.

    Raises:
        ValueError: The text is not a byte count or is negative.

    Example: `parse_bytes("1.5GiB")` is 1,610,612,736.
    """
    cleaned = text.strip().upper().replace("_", "").replace(",", "")
    number = cleaned.rstrip("BIKMG ")
    suffix = cleaned[len(number) :].strip()
    message = f"{text!r} is not a byte count; write 1073741824, 512MiB or 1.5GiB"
    if suffix not in _SUFFIX_BYTES or not number:
        raise ValueError(message)
    try:
        value = float(number) * _SUFFIX_BYTES[suffix]
        num_bytes = int(value)
    except (ValueError, OverflowError):
        raise ValueError(message) from None
    if num_bytes < 0:
        raise ValueError(message)
    return num_bytes
