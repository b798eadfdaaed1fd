"""`docs/options.md`, made from the option dataclasses: `make docs` writes it."""

from nanoserve.cli.option_flags import flag_name, option_fields
from nanoserve.options import EngineOptions, ServerOptions

_HEAD = """# Options of `nanoserve serve`

This page is made from the option dataclasses by `make docs`; a test compares it.
An empty default is decided at boot, and the boot prints what was chosen and why.
"""


def options_page() -> str:
    """Return the page as Markdown."""
    sections = [
        _HEAD,
        _table("Engine", EngineOptions, skip=("model",)),
        _table("Server", ServerOptions),
    ]
    return "\n".join(sections)


def _table(title: str, option_class: type, skip: tuple[str, ...] = ()) -> str:
    rows = [
        f"| `{flag_name(field.name)}` | {_shown(field.default)} | {field.metadata['help']} |"
        for field in option_fields(option_class, skip)
    ]
    head = [f"## {title}", "", "| flag | default | meaning |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _shown(default: object) -> str:
    return "" if default is None else f"`{default}`"


if __name__ == "__main__":
    print(options_page(), end="")
