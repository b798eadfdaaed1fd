"""Values that no flag can have are refused in our words, with the flag and the value."""

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from nanoserve.cli.main import app
from nanoserve.cli.option_values import bytes_reader, value_reader
from nanoserve.errors import OptionError

COMMANDS = {  # with the arguments that they cannot do without
    "serve": (),
    "chat": (),
    "batch": ("in.jsonl", "out.jsonl"),
    "explain": (),
    "plan": (),
    "compare": ("llama-3.1-8b",),
    "bench serve": (),
    "bench trace": (),
    "bench boot": (),
    "bench boots": ("records.jsonl",),
}
GIVEN = {"plan": ("llama-3.1-8b", "--gpu", "h100"), "explain": ("--metrics", "absent")}
TYPED = re.compile(r"^ +(--[a-z-]+) <(?!str>|path>)", re.MULTILINE)  # a number, or one of words


def flags() -> Iterator[tuple[str, str]]:
    """Yield every command with each of its flags that does not take any text."""
    for command in COMMANDS:
        text = CliRunner().invoke(app, [*command.split(), "--help"]).output
        yield from ((command, flag) for flag in TYPED.findall(text))


EVERY_FLAG = tuple(flags())


@pytest.mark.parametrize(("command", "flag"), EVERY_FLAG)
def test_every_flag_refuses_by_its_name(command: str, flag: str) -> None:
    """What is no number, and none of the words, never gets a parser's message."""
    words = (*command.split(), *COMMANDS[command], flag, "no value")
    result = CliRunner().invoke(app, words)

    assert isinstance(result.exception, OptionError), result.output
    assert str(result.exception).startswith(flag)
    assert "'no value'" in str(result.exception)


@pytest.mark.parametrize(("command", "flag"), EVERY_FLAG)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_flag_takes_what_is_no_finite_number(command: str, flag: str, value: str) -> None:
    """A float takes them from a text, and every comparison with one is wrong: each is refused."""
    words = (*command.split(), *(COMMANDS[command] or GIVEN.get(command, ())), flag, value)
    result = CliRunner().invoke(app, words)

    assert isinstance(result.exception, OptionError), result.output
    assert flag in str(result.exception)


def test_every_kind_of_flag_is_among_them() -> None:
    """Of dataclasses and of commands, numbers, bytes and words."""
    wanted = {
        ("serve", "--device"),
        ("serve", "--kv-cache-bytes"),
        ("plan", "--tp"),
        ("chat", "--temperature"),
        ("explain", "--over-seconds"),
        ("bench boot", "--repeat"),
    }

    assert wanted <= set(EVERY_FLAG)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "12", 12),
        (int | None, "1_000", 1000),
        (float, "0.5", 0.5),
        (float | None, "1e3", 1000.0),
        (Literal["a", "b"], "b", "b"),
        (int, 8, 8),
    ],
)
def test_values_are_read(hint: Any, text: object, value: object) -> None:
    """Texts become values, and a default stays one."""
    reader = value_reader("--flag", hint)

    assert reader is not None
    assert reader.read(text) == value


@pytest.mark.parametrize(
    ("hint", "text", "message"),
    [
        (int, "1.5", "--flag is '1.5'; it must be a whole number."),
        (int, "9" * 5000, f"--flag is '{'9' * 60}...'; it must be a whole number."),
        (float | None, "", "--flag is ''; it must be a number."),
        (Literal["a", "b"], "c", "--flag is 'c'; it must be one of a, b."),
    ],
)
def test_a_refusal_has_flag_value_and_what_is_allowed(hint: Any, text: str, message: str) -> None:
    """A long value is cut."""
    reader = value_reader("--flag", hint)

    assert reader is not None
    with pytest.raises(OptionError) as refusal:
        reader.read(text)
    assert str(refusal.value) == message


@pytest.mark.parametrize("text", ["-1", "3600.5", "nan", "inf"])
def test_bounds_are_named(text: str) -> None:
    """What is no number of the range is refused with both its ends."""
    reader = value_reader("--flag", float, (0, 3600))

    assert reader is not None
    assert reader.read("3600") == 3600.0
    with pytest.raises(OptionError, match="it must be a number from 0 to 3,600"):
        reader.read(text)


def test_bytes_have_units() -> None:
    """A default is bytes already."""
    reader = bytes_reader("--flag")

    assert (reader.read("1KiB"), reader.read(5)) == (1024, 5)
    with pytest.raises(OptionError, match=r"^--flag: 'much' is not a byte count; write .*GiB\.$"):
        reader.read("much")


@pytest.mark.parametrize("hint", [str, str | None, bool, bool | None])
def test_any_text_is_left_to_the_options(hint: Any) -> None:
    """And switches take no value."""
    assert value_reader("--flag", hint) is None
