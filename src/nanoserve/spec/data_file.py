"""Where the packaged tables lie. A path beside this file: `importlib.resources` takes 10 ms more."""

from pathlib import Path


def data_file(name: str) -> Path:
    """Return the path of a packaged table."""
    return Path(__file__).parent / "data" / name
