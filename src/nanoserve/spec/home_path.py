"""Paths as people type them."""

from pathlib import Path


def home_path(text: str) -> Path:
    """Return a path with `~` and `~user` in their homes; of nobody's home, as it is written.

    Example: `~0/model` stays so: there is no user 0, and a folder may be called `~0`.
    """
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path
