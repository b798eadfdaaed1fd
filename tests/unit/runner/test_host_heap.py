"""The C library's heap, in a process of its own."""

import subprocess
import sys

CODE = """
import threading
from pathlib import Path
from nanoserve.runner.host_heap import trim_heap, use_one_heap
from nanoserve.runner.host_memory import parse_status

use_one_heap()
large = bytes(30 * 2**20)
del large  # from now on the C library keeps up to twice as much
size = lambda: parse_status(Path("/proc/self/status").read_text())["RssAnon"]
before = size()

def churn():
    pieces = [bytes([1]) * 2**20 for _ in range(20)]
    del pieces

threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
trim_heap()
print(size() - before)
"""


def test_what_threads_freed_is_given_back() -> None:
    """20 MiB that each of four threads took and freed leave less than 4 MiB behind."""
    result = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    )

    assert int(result.stdout) < 4 * 2**20
