"""The planner alone is installed, and a server is wanted."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nanoserve.serve_extra import SERVE_MODULES, missing_extra

ROOT = Path(__file__).parents[2]


def test_it_knows_what_the_extra_installs() -> None:
    """Every package that `pyproject.toml` lists, by the name it is imported by."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = [line.partition(">")[0] for line in project["optional-dependencies"]["serve"]]

    assert {name.replace("-", "_") for name in packages} <= SERVE_MODULES


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("torch", "This needs torch, which is not installed. Install it: pip install"),
        ("torch.nn", "This needs torch,"),
        ("nanoserve.no_such", None),
        (None, None),
    ],
)
def test_what_is_missing_is_named(module: str | None, said: str | None) -> None:
    """What is nothing of the extra's is an error of ours, and not explained away."""
    message = missing_extra(ModuleNotFoundError(name=module))

    assert message is None if said is None else (message or "").startswith(said)


@pytest.mark.parametrize("module", ["torch", "nanoserve.launch.llm_input"])
def test_a_name_that_needs_the_extra_says_so(module: str) -> None:
    """`from nanoserve import LLM` in a planner's environment; a fault of ours stays one."""
    code = f"import sys; sys.modules[{module!r}] = None; from nanoserve import LLM"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 1
    is_explained = "ImportError: This needs torch" in done.stderr
    assert is_explained == (module == "torch")
