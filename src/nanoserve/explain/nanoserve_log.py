"""This server's own start-up output: stage lines, the budget table, refusals.

Their wording is made in `boot_report`, `boot_info`, `boot_plan`, `kv_plan` and
`errors.DoesNotFitError`; tests render them with those and read them back.
"""

import re
from dataclasses import replace

from nanoserve.explain.log_errors import BootMarks, ErrorPattern, StageMark
from nanoserve.explain.log_format import LogFormat
from nanoserve.explain.log_patterns import NUMBER, Figure, count, line_pattern, number, sized
from nanoserve.explain.logged_boot import Findings, LoggedError

_SIGNS = (
    "memory planned measured residual",
    "nanoserve ",
    "nanoserve: ",
    " blocks of ",
    "cannot hold one request of",
    "Boot stopped at '",
    "The weights do not fit on",
    "do not fit together on",
    "this process at start",
    "Any one of these would do: --",
    "/v1/completions -d '",
)
_PREFIXES = re.compile(r"nanoserve")
_PATHS = ("nanoserve/",)
_READY = " on http://"  # `ready in` alone is also in `already in use`
_SIZE = r"(-?[\d.,]{1,20} [MG]iB)"
_TABLE = "memory planned measured residual"
_TABLE_CHARS = 1200
_ROWS = {
    "weights": "weight_bytes",
    "driver context": "non_torch_bytes",
    "this process at start": "own_bytes",
    "other processes": "others_bytes",
    "reserve": "reserve_bytes",
    "kv pool": "pool_bytes",
    "activations": "activation_bytes",
    "capture": "graph_bytes",
    "total": "total_bytes",
}

_LINES = (
    line_pattern(
        "nanoserve ", r"nanoserve v?(\d{1,6}\.\d{1,6}[\w.+-]{0,30})", Figure("version", str)
    ),
    line_pattern("ready in ", r"ready in [\d.]{1,8} s; (\S{1,200}) on ", Figure("model", str)),
    line_pattern(
        "weights ", rf"weights [\d.]{{1,8}} s {_SIZE}", Figure("weight_bytes", sized, "first")
    ),
    line_pattern("pool ", rf"pool [\d.]{{1,8}} s {_SIZE}", Figure("pool_bytes", sized, "first")),
    line_pattern(
        "pool ",
        rf"pool [\d.]{{1,8}} s .{{0,80}}?{NUMBER} blocks of {NUMBER} tokens, {NUMBER} requests of"
        rf" {NUMBER}",
        Figure("num_blocks", count),
        Figure("block_size", count),
        Figure("max_concurrency", number),
        Figure("max_model_len", count),
    ),
)
_ADVICE = re.compile(r"Any one of these would do: (--[^.]{1,400}?)\.(?: |$)")
_NEED = (
    r".{0,400}?It needs (?P<need_bytes>[\d.,]{1,20} [MG]iB); (?P<have_bytes>-?[\d.,]{1,20} [MG]iB)"
)
_LONGEST = re.compile(
    r"cannot hold one request of (?P<need_tokens>[\d,]{1,16}) tokens"
    rf"{_NEED}(?:.{{0,200}}?--max-model-len (?P<fitting_len>\d{{1,12}}))?"
)
_REFUSALS = (
    ErrorPattern("cannot hold one request of", "request larger than pool", _LONGEST, "pool"),
    ErrorPattern("do not fit together on", "no room for pool", re.compile(_NEED), "pool"),
    ErrorPattern("The weights do not fit on", "out of memory", re.compile(_NEED), "weights"),
    ErrorPattern("No decode step can be captured", "option", None, "capture"),
    ErrorPattern("nanoserve: --", "option", None, "start"),
    ErrorPattern("Supported: ", "unsupported", None, "start"),
    ErrorPattern("There is no file or folder", "model not found", None, "start"),
)
_STAGE_MARKS = (
    StageMark("Boot stopped at 'weights'", "weights"),
    StageMark("Boot stopped at 'profile'", "profile"),
    StageMark("Boot stopped at 'pool'", "pool"),
    StageMark("Boot stopped at 'capture'", "capture"),
    StageMark("plan ", "weights"),
    StageMark("weights ", "profile"),
    StageMark("profile ", "pool"),
    StageMark("pool ", "capture"),
    StageMark(_READY, "serving"),
)


def _add_table(text: str, findings: Findings) -> None:
    """Add the rows of the budget table: measured bytes, planned where nobody measured."""
    table = text.find(_TABLE)
    if table < 0:
        return
    start = table + len(_TABLE)
    for row, name in _ROWS.items():
        match = re.compile(rf" {row} {_SIZE}(?: {_SIZE}| -)?").search(
            text, start, start + _TABLE_CHARS
        )
        if match is not None:
            findings.put(name, sized(match[2] or match[1]), "last", match.start() + 1)


def _add_advice(text: str, error: LoggedError) -> LoggedError:
    """Add the flags that the refusal names: it planned again with each."""
    advice = _ADVICE.search(text, error.position or 0)
    return error if advice is None else replace(error, advice=tuple(advice[1].split("; ")))


NANOSERVE_LOG = LogFormat(
    engine="nanoserve",
    signs=_SIGNS,
    start="nanoserve ",
    ready=(_READY,),
    lines=_LINES,
    marks=BootMarks(_REFUSALS, _STAGE_MARKS, (), (ErrorPattern("nanoserve: ", "unclear"),)),
    prefixes=_PREFIXES,
    paths=_PATHS,
    add_figures=_add_table,
    amend_error=_add_advice,
)
