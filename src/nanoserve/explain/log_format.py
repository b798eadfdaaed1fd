"""What every engine's start-up log has in common: one description, one reader.

An engine's module says what its lines look like; how they are read is here alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from nanoserve.explain.log_errors import (
    BootMarks,
    find_error,
    find_hint,
    total_of_failure,
    without_retried,
)
from nanoserve.explain.log_patterns import LinePattern, find_figures
from nanoserve.explain.log_text import PlainLog
from nanoserve.explain.log_troubles import TROUBLES, ending_error, raised_error
from nanoserve.explain.logged_boot import Findings, LoggedBoot, LoggedError


def _nothing_more(text: str, findings: Findings) -> None:
    """Add no figure: the lines alone say everything."""


def _as_found(text: str, error: LoggedError) -> LoggedError:
    return error


_ORIGIN_POINTS = 2  # of a line's prefix or a file's path, over a phrase that others may quote


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One engine's start-up log.

    Attributes:
        engine: Its name.
        signs: Texts by which it is recognised: the more a log holds, the likelier.
        prefixes: What stands before its lines, every digit a 0.
        paths: Parts of its files' paths, as tracebacks name them.
        start: Text with which a boot begins, where a log holds several.
        ready: Texts any one of which says that it serves.
        lines: Those that hold figures.
        marks: What refuses a boot, and where one stands.
        add_figures: Puts in what takes more than one line to know.
        amend_error: Adds to an error what stands elsewhere.
    """

    engine: str
    signs: tuple[str, ...]
    start: str
    ready: tuple[str, ...]
    lines: tuple[LinePattern, ...]
    marks: BootMarks
    prefixes: re.Pattern[str]
    paths: tuple[str, ...]
    add_figures: Callable[[str, Findings], None] = _nothing_more
    amend_error: Callable[[str, LoggedError], LoggedError] = _as_found


def likeness(log: LogFormat, plain: PlainLog) -> int:
    """Return by how many signs a text is an engine's; 0 where it holds none.

    Args:
        log: The engine's.
        plain: Any text: a paste may hold a traceback's end alone.
    """
    points = sum(sign in plain.text for sign in log.signs)
    points += _ORIGIN_POINTS * any(log.prefixes.search(kind) for kind in plain.prefixes)
    return points + _ORIGIN_POINTS * any(path in plain.text for path in log.paths)


def read_log(log: LogFormat, text: str) -> LoggedBoot:
    """Return what one boot's log says.

    A server that came to serve was stopped by nothing that came before. Of one that did not,
    memory is asked after first, then what else may have stopped it.

    Args:
        log: Its engine's.
        text: Plain, as `log_text.plain_log` makes it.
    """
    findings = Findings()
    find_figures(text, log.lines, findings)
    log.add_figures(text, findings)
    total, position = total_of_failure(text)
    findings.put("total_bytes", total, "first", position)
    is_ready = any(sign in text for sign in log.ready)
    tried = without_retried(text, log.marks)
    error = find_error(tried, log.marks)
    if is_ready and error is not None and error.stage != "serving":
        error = None
    if error is None and not is_ready:
        error = other_error(tried, log.marks)
    if error is not None:
        error = log.amend_error(tried, error)
    return findings.complete(LoggedBoot(engine=log.engine, is_ready=is_ready, error=error))


def other_error(text: str, marks: BootMarks) -> LoggedError | None:
    """Return what stopped a boot that memory did not."""
    told = tuple(hint for hint in marks.hints if hint.kind != "unclear")
    error = find_hint(text, TROUBLES, marks) or raised_error(text) or find_hint(text, told, marks)
    return error or ending_error(text) or find_hint(text, marks.hints, marks)


def place_boot(boot: LoggedBoot, offset: int) -> LoggedBoot:
    """Return a boot whose places count from the start of the log that it was cut from."""
    error = boot.error
    if error is not None and error.position is not None:
        error = replace(error, position=error.position + offset)
    positions = {name: position + offset for name, position in boot.positions.items()}
    return replace(boot, error=error, positions=positions)
