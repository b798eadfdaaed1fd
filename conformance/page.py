"""docs/conformance.md, from the last result of each suite."""

from collections.abc import Mapping, Sequence

from conformance.results import Result
from conformance.suites import SERVER_FLAGS, Suite

_HEAD = """\
# Public suites, run against the server

This page is written by `make conformance`, which starts a server of this checkout on
127.0.0.1 for each suite. `make conformance ARGS="llm_cli litellm"` runs some of them.
Each client has an environment of its own in `.venv-conformance/`.

| suite | versions | passed | failed | expected to fail | skipped | date |
|---|---|---|---|---|---|---|
"""
_SERVERS = """
## What was served

- *default*: SmolLM2-135M-Instruct as it comes, a GGUF file.
- *folder*: its weights, dequantised by transformers into a folder; the chat template knows
  tools (Hermes style), which the model's own does not.
- *float32*: the same folder, computed in float32.
- *tiny*: a random model of two layers with the same tokenizer, where answers must be fast
  and their text does not matter.
"""


def conformance_page(suites: Sequence[Suite], results: Mapping[str, Result]) -> str:
    """Return the page; a suite without a result is left out."""
    ran = [(suite, results[suite.name]) for suite in suites if suite.name in results]
    rows = "".join(_row(result) for _, result in ran)
    return _HEAD + rows + _SERVERS + "".join(_section(*pair) for pair in ran)


def _row(result: Result) -> str:
    numbers = (result.passed, result.failed, result.xfailed, result.skipped)
    cells = [result.suite, result.versions, *map(str, numbers), result.date]
    return f"| {' | '.join(cells)} |\n"


def _section(suite: Suite, result: Result) -> str:
    flags = " ".join(SERVER_FLAGS[suite.server])
    server = f"*{suite.server}*" + (f" (`{flags}`)" if flags else "")
    lines = [f"- Runs {suite.runs}.", f"- Server: {server}."]
    lines += [f"- {note}." for note in result.notes]
    lines += [f"- {reason}" for reason in result.reasons]
    return f"\n## {suite.name}\n\n" + "\n".join(lines) + "\n"
