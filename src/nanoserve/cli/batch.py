"""`nanoserve batch`: a file of requests to a file of answers, resumable.

A line that has an answer is done, if the answer is an error too: to have it answered
again, take its answer out of the file.
"""

import sys
from collections import Counter
from contextlib import closing
from importlib import import_module
from pathlib import Path

from rich.console import Console

from nanoserve.cli.serve import ConsoleListener, import_boot
from nanoserve.launch.batch_answers import AnswerFile
from nanoserve.launch.batch_file import Survey, open_lines, survey_batch
from nanoserve.launch.progress_bar import progress_bar
from nanoserve.options import EngineOptions

_SIGINT_CODE = 130  # 128 + the signal's number, as shells count


def run_batch(
    input_path: Path, output_path: Path, options: EngineOptions, served_model_name: str | None
) -> int:
    """Answer the lines that have no answer yet; return the exit code.

    0 means that every line has its answer, if only an error; 1 that some could not be read.

    Args:
        input_path: Requests in OpenAI's batch format.
        output_path: Answers; those of an earlier run are kept.
        options: Of the engine.
        served_model_name: What the lines call the model; None is its own name.

    Raises:
        OptionError: A file cannot be used; nothing was loaded.
        NanoserveError: The boot was refused, or the run was cut short.
    """
    with AnswerFile(output_path) as answers:
        survey = survey_batch(input_path, answers.answered)
        _print_problems(survey)
        statuses: Counter[int] = Counter()
        try:
            if survey.num_open:
                statuses = _answer(input_path, answers, survey, options, served_model_name)
        except KeyboardInterrupt:
            print("Interrupted. Run the same command again to go on.", file=sys.stderr)
            return _SIGINT_CODE
    print(summary(survey, statuses))
    return 1 if survey.num_problems else 0


def _answer(
    input_path: Path,
    answers: AnswerFile,
    survey: Survey,
    options: EngineOptions,
    served_model_name: str | None,
) -> Counter[int]:
    with closing(ConsoleListener(Console(file=sys.stdout))) as listener:
        booted = import_boot(listener)(options, listener)
    front = import_module("nanoserve.cli.batch_front")
    name = served_model_name or booted.model_name
    lines = open_lines(input_path, answers.answered)
    with progress_bar("batch", survey.num_open) as advance:
        statuses: Counter[int] = front.answer_batch(booted, name, lines, answers, advance)
    return statuses


def _print_problems(survey: Survey) -> None:
    for problem in survey.problems:
        print(f"nanoserve: {problem}", file=sys.stderr)
    more = survey.num_problems - len(survey.problems)
    if more:
        print(f"nanoserve: and {more:,} more lines like these", file=sys.stderr)


def summary(survey: Survey, statuses: Counter[int]) -> str:
    """Return one line that accounts for every line of the input."""
    num_ok = statuses[200]
    parts = [f"{num_ok:,} answered"]
    if num_failed := statuses.total() - num_ok:
        codes = ", ".join(f"{n:,} x {code}" for code, n in sorted(statuses.items()) if code != 200)
        parts.append(f"{num_failed:,} answered with an error ({codes})")
    if survey.num_answered:
        parts.append(f"{survey.num_answered:,} had their answer before")
    if survey.num_problems:
        parts.append(f"{survey.num_problems:,} not readable")
    return f"batch: {'; '.join(parts)}"
