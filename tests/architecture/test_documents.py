"""Documents say what the code does."""

import re
from pathlib import Path

import nanoserve
from nanoserve.cli.options_page import options_page

ROOT = Path(__file__).parents[2]
PACKAGE = Path(nanoserve.__file__).parent


def test_options_page_is_generated() -> None:
    """docs/options.md equals what `make docs` writes."""
    assert (ROOT / "docs" / "options.md").read_text() == options_page()


def test_architecture_names_exist() -> None:
    """Every file named in ARCHITECTURE.md and README.md exists in the package or the project."""
    for document in ("ARCHITECTURE.md", "README.md"):
        text = (ROOT / document).read_text()
        for name in re.findall(r"`([\w/]+\.(?:py|md|toml|txt))`", text):
            found = list(PACKAGE.rglob(name)) or list(ROOT.glob(name))

            assert found, f"{document} names {name}"


def test_every_package_has_its_paragraph() -> None:
    """ARCHITECTURE.md has a paragraph for each sub-package."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert {name for name in packages if f"**`{name}`**" not in text} == set()


def test_make_targets_of_the_documents_exist() -> None:
    """Every `make` target in README.md and CONTRIBUTING.md is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        used = set(re.findall(r"\bmake ([a-z]+)`", (ROOT / document).read_text()))

        assert used <= targets, document


def test_changelog_has_the_version() -> None:
    """The version in the package is in the changelog."""
    assert f"[{nanoserve.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_glossary_symbols_exist() -> None:
    """Every symbol of the glossary is a name in the package."""
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if "|" in line]
    symbols = {symbol for row in rows for symbol in re.findall(r"`(\w+)`", row)}

    assert {symbol for symbol in symbols if not re.search(rf"\b{symbol}\b", source)} == set()
