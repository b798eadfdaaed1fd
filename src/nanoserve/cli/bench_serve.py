"""What `nanoserve bench serve` does with its flags: measure, print, write files."""

from pathlib import Path

from nanoserve.bench.plot_library import check_can_plot
from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.serve_plot import write_plot
from nanoserve.bench.servebench import num_counted, run_bench
from nanoserve.errors import OptionError
from nanoserve.launch.progress_bar import progress_bar


def run_bench_serve(options: ServeBenchOptions) -> int:
    """Load the server, print the report, and return the exit code: 1 where a request failed.

    Raises:
        NanoserveError: Nothing could be measured, or a file cannot be written.
    """
    files = [Path(name) for name in (options.json, options.csv, options.plot) if name]
    for path in files:
        if not path.absolute().parent.is_dir():
            message = f"The folder of {path} does not exist. Make it, or give another name."
            raise OptionError(message)
    if options.plot:
        check_can_plot()
    with progress_bar("requests", num_counted(options)) as advance:
        report = run_bench(options, advance)
    print(report.describe())
    if options.json:
        report.write_json(Path(options.json))
    if options.csv:
        report.write_csv(Path(options.csv))
    if options.plot:
        write_plot(report, Path(options.plot))
    return 1 if report.errors else 0
