"""Pieces of logs, as they are pasted and as pages, collectors and terminals change them."""

import html
import json
from collections.abc import Callable

import pytest

from nanoserve.explain.explain import Explanation, explain_log
from nanoserve.explain.log_text import decode_log
from tests.pastes import PASTES, Paste

Wrapper = Callable[[str], str]


def lines_with(prefix: str) -> Wrapper:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


def wrapped_at(columns: int) -> Wrapper:
    """Return what a terminal does: a line goes on in the next row, in the middle of a word."""

    def wrap(text: str) -> str:
        rows = [
            line[start : start + columns]
            for line in text.splitlines()
            for start in range(0, max(1, len(line)), columns)
        ]
        return "\n".join(rows) + "\n"

    return wrap


def records(**fields: str) -> Wrapper:
    """Return a collector's records, a line each."""
    key = fields.pop("key")
    return lambda text: "".join(
        json.dumps({**fields, key: f"{line}\n", "stream": "stderr"}) + "\n"
        for line in text.splitlines()
    )


WRAPPERS: dict[str, Wrapper] = {
    "as it is": lambda text: text,
    "fenced in an issue": lambda text: f"### Your output\n\n```text\n{text}```\n\nWhat is wrong?\n",
    "quoted in an answer": lines_with("> "),
    "quoted twice": lines_with("> > "),
    "quoted and fenced": lambda text: lines_with("> ")(f"```\n{text}```\n"),
    "Docker Compose": lines_with("llm-1  | "),
    "Docker's stamps": lines_with("2025-11-02T12:00:31.123456789Z "),
    "a pod's file": lines_with("2025-11-02T12:00:31.123456789Z stderr F "),
    "kubectl's prefix": lines_with("[pod/llm-0/server] "),
    "systemd": lines_with("Nov 02 12:00:31 box serve.sh[4242]: "),
    "Docker's records": records(key="log", time="2025-11-02T12:00:31.1Z"),
    "a cloud's records": records(key="textPayload", severity="ERROR"),
    "another collector's records": records(key="message", host="box"),
    "colours": lambda text: "".join(
        f"\x1b[1;36m{line[:9]}\x1b[0;0m{line[9:]}\n" for line in text.splitlines()
    ),
    "Windows' line ends": lambda text: text.replace("\n", "\r\n"),
    "80 columns": wrapped_at(80),
    "132 columns": wrapped_at(132),
    "80 columns, quoted": lambda text: lines_with("> ")(wrapped_at(80)(text)),
    "escaped for HTML": html.escape,
    "HTML": lambda text: (
        "<pre><code>" + html.escape(text).replace("\n", "<br>\n") + "</code></pre>"
    ),
    "one string with written-out line ends": lambda text: repr(text),
    "numbered lines": lambda text: "".join(
        f"{number:4} | {line}\n" for number, line in enumerate(text.splitlines(), 1)
    ),
}


def explained(text: str) -> Explanation:
    return explain_log(decode_log(text.encode()))


def check(explanation: Explanation, paste: Paste) -> None:
    assert explanation.boot.engine == paste.engine
    assert explanation.outcome.kind == paste.outcome
    quote = "" if explanation.quote is None else explanation.quote.text
    assert paste.quote in quote
    changes = [fix.change for fix in explanation.fixes]
    assert not paste.fix or any(paste.fix in change for change in changes), changes


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", PASTES)
def test_a_paste_is_read(name: str, wrapper: str) -> None:
    """Engine, outcome, the line that says so and a change are right, whatever is around it."""
    paste = PASTES[name]

    check(explained(WRAPPERS[wrapper](paste.text)), paste)


@pytest.mark.parametrize("name", PASTES)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig"])
def test_a_paste_in_another_encoding(name: str, encoding: str) -> None:
    """What Windows' tools write reads the same."""
    paste = PASTES[name]

    check(explain_log(decode_log(paste.text.encode(encoding))), paste)


def test_there_are_many_pastes() -> None:
    """No engine is left out."""
    assert len(PASTES) >= 40
    assert len({paste.text for paste in PASTES.values()}) == len(PASTES)
