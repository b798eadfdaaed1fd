"""Models known by name without a network: packaged configs, found by the spellings people use.

Owns `data/presets.jsonl`. Only the row that is asked for is parsed.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from nanoserve.spec.data_file import data_file

_NAMES = re.compile(r'\{"model":"([^"]+)","names":\[([^\]]*)\]')
_PUNCTUATION = re.compile(r"[\s_.\-]+")
_MAX_NEAREST = 4


@dataclass(frozen=True, slots=True)
class Preset:
    """One packaged model.

    Attributes:
        model: Its hub id.
        names: Short names it also answers to.
        config: The keys of its config.json that a plan depends on.
    """

    model: str
    names: tuple[str, ...]
    config: Mapping[str, Any]


def find_preset(name: str) -> Preset | None:
    """Return the preset of that name; case, dashes, dots and the organisation are forgiven."""
    line = _lines_by_spelling().get(_spelling(name))
    return None if line is None else _preset(line)


def preset_names() -> tuple[str, ...]:
    """Return the hub ids of all presets, in the packaged order."""
    return tuple(_heading(line)[0] for line in _lines())


def presets() -> Iterator[Preset]:
    """Yield all presets, in the packaged order."""
    return map(_preset, _lines())


def nearest_presets(name: str) -> tuple[str, ...]:
    """Return the hub ids that are spelled most like a name."""
    spellings = {_spelling(model): model for model in preset_names()}
    close = difflib.get_close_matches(_spelling(name), spellings, n=_MAX_NEAREST, cutoff=0.3)
    return tuple(spellings[spelling] for spelling in close)


@cache
def _lines() -> tuple[str, ...]:
    path = data_file("presets.jsonl")
    return tuple(path.read_text(encoding="utf-8").splitlines())


@cache
def _lines_by_spelling() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _lines():
        for name in _heading(line):
            found[_spelling(name)] = line
    return found


def _heading(line: str) -> list[str]:
    """Return the hub id and the short names of a row."""
    match = _NAMES.match(line)
    assert match is not None, f"a preset does not begin with its names: {line[:80]}"  # noqa: S101
    return [match[1], *json.loads(f"[{match[2]}]")]


def _spelling(name: str) -> str:
    return _PUNCTUATION.sub("", name[:200].rpartition("/")[2].casefold())


def _preset(line: str) -> Preset:
    row = json.loads(line)
    return Preset(row["model"], tuple(row["names"]), row["config"])
