"""Run public suites against the server, and write docs/conformance.md.

python -m conformance.run                    all of them
python -m conformance.run llm_cli litellm    some; the page keeps the others' last result
"""

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

from conformance.environments import FOLDER, python_of, versions
from conformance.page import conformance_page
from conformance.results import Result, load_results, read_junit
from conformance.served import served
from conformance.suites import SERVER_FLAGS, SUITES, Suite
from nanoserve.spec.model_dir import resolve_model

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "conformance.md"
RESULTS = FOLDER / "results"
MODELS = FOLDER / "models"
MODEL_WRITER = "lm_eval"  # the suite whose environment has transformers
DEFAULT_MODEL = "smollm2"


def main(names: list[str]) -> int:
    """Run the named suites, all if none is named; 1 if a test failed, 2 for a wrong name."""
    unknown = set(names) - {suite.name for suite in SUITES}
    if unknown:
        known = ", ".join(suite.name for suite in SUITES)
        print(f"There is no suite {', '.join(sorted(unknown))}. Suites: {known}.")
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_models()
    results = []
    for suite in SUITES:
        if not names or suite.name in names:
            results.append(run_suite(suite))
            print(f"{suite.name:<14}{summary(results[-1])}", flush=True)
    PAGE.write_text(conformance_page(SUITES, load_results(RESULTS)))
    return int(any(result.failed for result in results))


def write_models() -> None:
    """Write the model folders, unless they are there."""
    if (MODELS / "smollm2" / "model.safetensors").exists():
        return
    (writer,) = (suite for suite in SUITES if suite.name == MODEL_WRITER)
    command: list[str | Path] = [python_of(writer), "-m", "conformance.models"]
    command += [resolve_model(DEFAULT_MODEL).path, MODELS]
    subprocess.run(command, check=True, cwd=HERE.parent)


def run_suite(suite: Suite) -> Result:
    """Serve what the suite wants, run it, and return what it came to."""
    python = python_of(suite)
    junit = RESULTS / f"{suite.name}.xml"
    junit.unlink(missing_ok=True)
    folder = MODELS / ("tiny" if suite.server == "tiny" else "smollm2")
    model = DEFAULT_MODEL if suite.server == "default" else folder
    log = RESULTS / f"{suite.name}.server.log"
    with served(model, SERVER_FLAGS[suite.server], log) as url:
        told = {
            "CONFORMANCE_URL": url,
            "CONFORMANCE_MODEL": Path(model).name,
            "CONFORMANCE_MODEL_FOLDER": str(MODELS / "smollm2"),
        }
        run_pytest(suite, python, told, junit)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = read_junit(junit, suite.name, versions(python, suite.packages), date)
    result.save(RESULTS)
    return result


def run_pytest(suite: Suite, python: Path, told: dict[str, str], junit: Path) -> None:
    """Run a suite's tests up to its time limit; what they print goes beside the results.

    Args:
        suite: Which.
        python: Of its environment.
        told: Environment variables for it; see conftest.
        junit: File that gets the outcomes.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-c",
        HERE / "pytest.ini",
        HERE / f"test_{suite.name}.py",
    ]
    command += [f"--junitxml={junit}", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command += suite.flags
    with (RESULTS / f"{suite.name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=RESULTS,
            env=environment | told,
            start_new_session=True,
        )
        try:
            process.wait(suite.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the client it waits for
            log.write(f"stopped after {suite.limit_s:.0f} s\n")


def summary(result: Result) -> str:
    """Return one line for the terminal."""
    counts = f"{result.passed} passed, {result.failed} failed"
    return f"{counts}, {result.xfailed} expected to fail, {result.skipped} skipped"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
