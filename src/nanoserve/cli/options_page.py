"""`docs/options.md`, made from the option dataclasses: `make docs` writes it."""

from dataclasses import Field
from typing import Any

from nanoserve.cli.option_flags import is_switch, negative_flag, option_fields
from nanoserve.options import EngineOptions, ServerOptions, flag_name

_HEAD = """# Options of `nanoserve serve`

This page is made from the option dataclasses by `make docs`; a test compares it.
An empty default is decided at boot: the `plan` and `pool` lines show the value, and a
`note` explains an automatic dtype and a length that was cut.
`nanoserve batch` takes the engine's flags too, `nanoserve bench trace` those that its load
leaves open; `--help` of `chat`, `batch` and the `bench` commands lists those of each.
"""

_EXIT_CODES = """## Exit codes

| code | meaning |
|---|---|
| 0 | told to stop, and stopped |
| 1 | the engine died while serving; every client was told |
| 2 | a flag is impossible, the address is taken, or the extra `serve` is not installed |
| 3 | the model cannot be read or is not supported |
| 4 | the plan does not fit in memory |
| 5 | a boot stage failed |
| 130, 143, 129 | Ctrl-C, SIGTERM or SIGHUP ended it before it served; nothing is left half-written |
"""


def options_page() -> str:
    """Return the page as Markdown."""
    sections = [
        _HEAD,
        _table("Engine", EngineOptions, skip=("model",)),
        _table("Server", ServerOptions),
        _EXIT_CODES,
    ]
    return "\n".join(sections)


def _table(title: str, option_class: type, skip: tuple[str, ...] = ()) -> str:
    rows = [
        f"| {_flag(field)} | {_shown(field.default)} | {field.metadata['help']} |"
        for field in option_fields(option_class, skip)
    ]
    head = [f"## {title}", "", "| flag | default | meaning |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _flag(field: Field[Any]) -> str:
    flag = flag_name(field.name)
    return f"`{flag}`, `{negative_flag(field)}`" if is_switch(field) else f"`{flag}`"


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default is None else f"`{default}`"


if __name__ == "__main__":
    print(options_page(), end="")
