"""The index of families and the modules that hold them say the same."""

from importlib import import_module
from pathlib import Path

from nanoserve import spec
from nanoserve.spec.family import Family
from nanoserve.spec.family_index import FAMILY_NAMES, find_family


def test_every_family_is_found() -> None:
    """Each name leads to a family."""
    for name in FAMILY_NAMES:
        assert isinstance(find_family(name), Family), name


def test_no_family_is_left_out() -> None:
    """Every table of a module is in the index, whole."""
    folder = Path(str(spec.__file__)).parent
    for path in folder.glob("*_families.py"):
        module = import_module(f"nanoserve.spec.{path.stem}")
        table = getattr(module, path.stem.upper())
        assert set(table) <= set(FAMILY_NAMES), path.name
        for name, family in table.items():
            assert find_family(name) is family
