"""A virtual environment for each suite, so that no two clients' pins meet."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from conformance.suites import Suite

FOLDER = Path(".venv-conformance").absolute()
GUARD = Path(__file__).with_name("constraints.txt")  # keeps builds for CUDA out
TEST_RUNNER = "pytest==9.2.0"


def python_of(suite: Suite) -> Path:
    """Return the interpreter of a suite, its packages installed if they were not yet.

    Raises:
        CalledProcessError: pip failed; it has said why.
    """
    if suite.is_in_main:
        return Path(sys.executable)
    home = FOLDER / suite.name
    python = home / "bin" / "python"
    stamp = home / ".installed"
    wanted = "\n".join([*suite.packages, TEST_RUNNER])
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(home, with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([python, *install, "-c", GUARD, *wanted.split("\n")], check=True)
        stamp.write_text(wanted)
    return python


def versions(python: Path, packages: Sequence[str]) -> str:
    """Return the installed versions of the suite's own packages."""
    names = [package.split("==")[0].split("[")[0] for package in packages]
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = subprocess.run(
        [python, "-c", code, *names], check=True, capture_output=True, text=True
    ).stdout.split()
    return ", ".join(f"{name} {version}" for name, version in zip(names, found, strict=True))
