"""Command line flags from option dataclasses: one spelling, one default, one help text."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from nanoserve.cli.option_values import bytes_reader, value_reader
from nanoserve.options import flag_name

T = TypeVar("T")


def negative_flag(field: Field[Any]) -> str:
    """Return the flag that turns a switch off."""
    return f"--no-{flag_name(field.name)[2:]}"


def is_switch(field: Field[Any]) -> bool:
    """Whether a field is on or off, or left to the boot, and takes no value."""
    return field.type in (bool, bool | None)


def option_fields(option_class: type, skip: tuple[str, ...] = ()) -> Iterator[Field[Any]]:
    """Yield the fields of an option dataclass that become flags."""
    return (field for field in fields(option_class) if field.name not in skip)


def accepts_options(
    *option_classes: type, skip: tuple[str, ...] = ()
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command one flag per field of `option_classes`, after its own parameters.

    The decorated command takes them as `**values`; `pick_options` builds the dataclasses.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        added = [
            _parameter(option_class, field)
            for option_class in option_classes
            for field in option_fields(option_class, skip)
        ]
        signature = inspect.Signature([*own, *added])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        return command

    return decorate


def pick_options(option_class: type[T], values: dict[str, Any]) -> T:
    """Build an option dataclass from the flags' values that belong to it.

    Raises:
        OptionError: A value is impossible.
    """
    names = {field.name for field in fields(option_class)}  # type: ignore[arg-type]
    return option_class(**{name: value for name, value in values.items() if name in names})


def number_option(
    flag: str, kind: type, text: str, bounds: tuple[float, float] | None = None
) -> Any:
    """Return a command's own option that takes a number, refused in our words."""
    reader = value_reader(flag, kind, bounds)
    assert reader is not None, f"{kind} is no number"  # noqa: S101
    return typer.Option(flag, help=text, parser=reader.read, metavar=reader.metavar)


@cache
def _hints(option_class: type) -> dict[str, Any]:
    return get_type_hints(option_class)


def _parameter(option_class: type, field: Field[Any]) -> inspect.Parameter:
    hint = _hints(option_class)[field.name]
    flag = flag_name(field.name)
    declaration = f"{flag}/{negative_flag(field)}" if is_switch(field) else flag
    is_bytes = field.name.endswith("_bytes")
    reader = bytes_reader(flag) if is_bytes else value_reader(flag, hint)
    option = typer.Option(
        declaration,
        help=field.metadata["help"],
        parser=None if reader is None else reader.read,
        metavar=None if reader is None else reader.metavar,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.default is MISSING else field.default,
        annotation=Annotated[hint, option],
    )
