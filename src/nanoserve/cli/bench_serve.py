"""What `nanoserve bench serve` does with its flags: measure, print, write files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from nanoserve.bench.plot_library import check_can_plot
from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.serve_plot import write_plot
from nanoserve.bench.serve_report import ServeReport
from nanoserve.bench.servebench import num_counted, run_bench
from nanoserve.errors import OptionError
from nanoserve.launch.output_file import check_writable, writing
from nanoserve.launch.progress_bar import progress_bar


def run_bench_serve(options: ServeBenchOptions) -> int:
    """Load the server, print the report, and return the exit code: 1 where a request failed.

    Raises:
        NanoserveError: Nothing could be measured, or a file cannot be written.
    """
    _check_files(options)
    with progress_bar("requests", num_counted(options)) as advance:
        report = run_bench(options, advance)
    print(report.describe())
    _write_files(options, report)
    return 1 if report.errors else 0


def _check_files(options: ServeBenchOptions) -> None:
    """Refuse what could not be written before the load: a report would be lost."""
    files = {"--json": options.json, "--csv": options.csv, "--plot": options.plot}
    taken: dict[Path, str] = {}
    for flag, name in files.items():
        if name is None:
            continue
        check_writable(flag, name)
        other = taken.setdefault(Path(name).resolve(), flag)
        if other != flag:
            message = f"{other} and {flag} both name {name!r}; give each a file of its own."
            raise OptionError(message)
    if options.plot is not None:
        check_can_plot()


def _write_files(options: ServeBenchOptions, report: ServeReport) -> None:
    """Write every file that was asked for; one that fails keeps none of the others from it."""
    writers: tuple[tuple[str, str | None, Callable[[Path], None]], ...] = (
        ("--json", options.json, report.write_json),
        ("--csv", options.csv, report.write_csv),
        ("--plot", options.plot, partial(write_plot, report)),
    )
    problems = []
    for flag, name, write in writers:
        if name is None:
            continue
        try:
            with writing(flag, name):
                write(Path(name))
        except OptionError as error:
            problems.append(error)
    if problems:
        raise problems[0]
