"""How long explaining a large log takes: `python -m bench.log_reading [MB] [log ...]`.

Prints, for each kind of file, the processor seconds of one reading, the median of three:
decoding, reading, explaining, and putting the explanation into words. Logs that are named are
read as well, over and over up to the same size, once at least.
"""

import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from bench.log_files import LOG_FILES, repeated

from nanoserve.cli.explain import explanation_lines
from nanoserve.explain.explain import explain_log
from nanoserve.explain.log_text import decode_log

NUM_READINGS = 3
MB = 1_000_000


def explain(content: bytes) -> None:
    """Do all that `nanoserve explain` does with a file, but for printing."""
    explanation = explain_log(decode_log(content))
    json.dumps(explanation.as_dict())
    list(explanation_lines(explanation))


def cpu_s(content: bytes) -> float:
    """Return the processor seconds of one reading, the median."""
    seconds = []
    for _ in range(NUM_READINGS):
        start_s = time.process_time()
        explain(content)
        seconds.append(time.process_time() - start_s)
    return statistics.median(seconds)


def read_log(path: str) -> bytes:
    """Return a log, of which there must be something to repeat."""
    content = Path(path).read_bytes() if Path(path).is_file() else b""
    if not content:
        message = f"{path} is no file with lines in it; name a log."
        raise SystemExit(message)
    return content


def _num_bytes(megabytes: str) -> int:
    try:
        num_bytes = round(float(megabytes) * MB)
    except (ValueError, OverflowError):
        num_bytes = 0
    if num_bytes <= 0:
        message = f"{megabytes} is no size in MB; give one above 0, then paths of logs if any."
        raise SystemExit(message)
    return num_bytes


def main(megabytes: str = "5", *paths: str) -> None:
    """Print the table, and the slowest."""
    num_bytes = _num_bytes(megabytes)
    logs = {path: partial(repeated, read_log(path)) for path in paths}
    files = LOG_FILES | logs
    width = max(map(len, files))
    print(f"{'file':{width}}  {'MB':>5}  {'CPU s':>6}")
    seconds = {}
    for name, make in files.items():
        content = make(num_bytes)
        seconds[name] = cpu_s(content)
        print(f"{name:{width}}  {len(content) / MB:5.2f}  {seconds[name]:6.3f}", flush=True)
    slowest = max(seconds, key=lambda name: seconds[name])
    print(f"The slowest of {len(seconds)}: {slowest}, {seconds[slowest]:.3f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
