"""What importing a part of nanoserve loads."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "transformers", "fastapi", "starlette", "uvicorn", "httpx", "gguf")


def loaded_after(statement: str) -> set[str]:
    """Return which heavy packages a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import nanoserve",
        "import nanoserve.plan, nanoserve.sched",
        "import nanoserve.plan.boot_plan, nanoserve.sched.scheduler",
        "import nanoserve.capacity.plan_answer, nanoserve.explain.explain",
        "import nanoserve.spec.checkpoint, nanoserve.options",
        "from nanoserve import SamplingParams",
        "import nanoserve.cli.main",
    ],
)
def test_pure_parts_load_nothing_heavy(statement: str) -> None:
    """Planning, scheduling and the command line's front import no torch and no HTTP."""
    assert loaded_after(statement) == set()


def test_a_plan_loads_nothing_heavy() -> None:
    """`nanoserve plan` answers without torch, numpy, matplotlib, gguf or a hub client."""
    heavy = (*HEAVY, "matplotlib", "huggingface_hub", "safetensors")
    code = (
        "import sys\nfrom nanoserve.cli.main import app\n"
        "try:\n    app(['plan', 'llama-3.1-8b', '--gpu', 'h100', '--explain'])\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"found = [name for name in {heavy!r} if name in sys.modules]\nassert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_a_server_s_metrics_are_read_without_a_client_library() -> None:
    """`nanoserve explain --metrics URL` asks a port where nobody answers, in a plain install."""
    statement = (
        "from nanoserve.cli.log_source import read_metrics_page\n"
        "from nanoserve.errors import OptionError\n"
        "try:\n    read_metrics_page('http://127.0.0.1:1')\nexcept OptionError:\n    pass"
    )

    assert loaded_after(statement) == set()


def test_a_plan_that_fits_loads_only_what_it_prints() -> None:
    """What compares, searches and mends, and what asks this machine, is left where it is."""
    left = (
        "nanoserve.capacity.comparison",
        "nanoserve.capacity.remedies",
        "nanoserve.capacity.plan_search",
        "nanoserve.capacity.plan_formulas",
        "nanoserve.capacity.plan_json",
        "importlib.resources",
        "subprocess",
    )
    code = (
        "import sys\nfrom nanoserve.cli.plan import run_plan\n"
        "from nanoserve.cli.plan_options import PlanOptions\n"
        "run_plan('llama-3.1-8b', PlanOptions(gpu='h100'), as_json=False, explain=False)\n"
        f"found = [name for name in {left!r} if name in sys.modules]\nassert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_engine_and_server_load_no_torch() -> None:
    """The request path, HTTP included, imports without torch."""
    loaded = loaded_after("import nanoserve.engine.async_bridge, nanoserve.server.app")

    assert "torch" not in loaded
    assert "numpy" not in loaded
