"""Reads from an untrusted mapping are typed and bounded, and name the key they refuse."""

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.config_fields import ConfigFields


def fields(**values: object) -> ConfigFields:
    return ConfigFields(
        {f"llama.{key}": value for key, value in values.items()}, "f.gguf", "llama."
    )


def test_null_is_absent_but_stated() -> None:
    """Null takes the default, and can still be told from a missing key."""
    read = fields(window=None)

    assert read.size("window", 10, 3) == 3
    assert (read.has("window"), read.states("window")) == (False, True)
    assert (read.has("other"), read.states("other")) == (False, False)


def test_bounds_are_inclusive() -> None:
    """A size may be its limit, and 0 where the caller says so."""
    assert fields(a=10).size("a", 10) == 10
    assert fields(a=0).size("a", 10, low=0) == 0
    assert fields(a=0).number("a") == 0.0
    with pytest.raises(CorruptFileError, match="from 1 to 10"):
        fields(a=11).size("a", 10)


def test_numbers_are_floats_above_zero_where_asked() -> None:
    """An integer is read as a float; 0 is not positive."""
    assert isinstance(fields(a=4).number("a"), float)
    assert fields(a=5e-324).positive("a") > 0
    with pytest.raises(CorruptFileError, match=r"llama\.a is 0"):
        fields(a=0).positive("a")


def test_errors_name_the_whole_key_and_the_file() -> None:
    """The prefix is part of the name."""
    with pytest.raises(CorruptFileError, match=r"f\.gguf.*the key llama\.a is missing"):
        fields().size("a", 10)
    with pytest.raises(UnsupportedModelError, match=r"f\.gguf has llama\.a = 'x': why not\."):
        fields(a="x").fail_unsupported("a", "why not.")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 10**6, "xxx…"),
        ([0] * 10**6, "a list of 1,000,000"),
        ({"a": 1}, "a dict of 1"),
        (10**5000, "an integer of 16,610 bits"),
    ],
    ids=["text", "list", "dict", "int"],
)
def test_large_values_are_shown_short(value: object, shown: str) -> None:
    """An error stays readable whatever the file holds."""
    with pytest.raises(CorruptFileError) as caught:
        fields(a=value).size("a", 10)

    assert shown in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_section_names_its_keys_with_a_dot() -> None:
    """Errors inside a nested object name the way to the key."""
    section = ConfigFields({"rope": {"factor": -1}}, "config.json").section("rope")

    assert section is not None
    with pytest.raises(CorruptFileError, match=r"rope\.factor is -1"):
        section.positive("factor")
    assert ConfigFields({"rope": {}}, "config.json").section("rope") is None
