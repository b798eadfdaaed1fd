"""Rules about files and names that no linter knows."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import nanoserve

PACKAGE = Path(nanoserve.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
MAX_MODULE_LINES = 300
MAX_BODY_LINES = 40


def test_file_names_are_unique() -> None:
    """A file can be named alone: no two modules share a name, but for the CLI's commands."""
    counts = Counter(path.name for path in MODULES if path.parent.name != "cli")

    assert [name for name, count in counts.items() if count > 1] == []


def test_modules_stay_short() -> None:
    """No module passes 300 lines: past that it usually holds two things."""
    lengths = {path.name: len(path.read_text().splitlines()) for path in MODULES}

    assert {name: n for name, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_functions_stay_short() -> None:
    """No function body passes 40 lines, its docstring not counted."""
    too_long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > MAX_BODY_LINES:
                    too_long.append(f"{path.name}:{node.name} has {lines} lines")

    assert too_long == []


def test_no_modules_import_each_other() -> None:
    """Not even where a function imports: what two modules need of each other is a third's."""
    imports = {_dotted(path): _imported(path) for path in MODULES}

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_reasons_of_errors_have_one_wording() -> None:
    """Only `error_reasons` reads what the system says of an error."""
    readers = {
        path.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "strerror"
        if not (isinstance(node.value, ast.Name) and node.value.id == "os")
    }

    assert readers == {"error_reasons.py"}


def test_sub_packages_export_nothing() -> None:
    """Sub-packages' `__init__` hold a docstring and nothing else."""
    for path in PACKAGE.glob("*/__init__.py"):
        body = ast.parse(path.read_text()).body

        assert len(body) == 1, path
        assert isinstance(body[0], ast.Expr), path


def test_public_names_exist() -> None:
    """Every name in `__all__` can be imported, and no other is promised."""
    assert all(getattr(nanoserve, name) is not None for name in nanoserve.__all__)
    assert nanoserve._HOME.keys() == set(nanoserve.__all__) - {"__version__"}


def _dotted(path: Path) -> str:
    return ".".join(("nanoserve", *path.relative_to(PACKAGE).with_suffix("").parts))


def _imported(path: Path) -> set[str]:
    """Return the modules that one names, wherever in it the import stands."""
    return {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
