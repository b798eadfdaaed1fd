"""The load over a real socket, against servers that do what servers do."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.serve_report import ServeReport
from nanoserve.bench.servebench import BenchError, num_counted, run_bench
from nanoserve.bench.server_client import ServerUnreachableError
from nanoserve.errors import OptionError
from tests.openai_server import (
    DONE,
    OK,
    Answer,
    Body,
    chunked,
    event,
    openai_server,
    refusal,
    usage,
    whole_answer,
)
from tests.unit.bench.thin_peer import unused_port

SMALL = ServeBenchOptions(
    num_requests=4, concurrency=2, prompt_tokens="8", output_tokens="4", timeout=60.0
)


def bench(answer: Any = None, **changes: Any) -> ServeReport:
    """Load a server that answers so."""
    with openai_server(*([answer] if answer else [])) as server:
        return run_bench(replace(SMALL, url=server.url, **changes))


def is_trial(body: Body) -> bool:
    """Whether it is the request that finds out which fields a server takes."""
    return bool(body["max_tokens"] == 2)


def test_closed_loop_keeps_its_streams_in_flight() -> None:
    """No more requests run at once than there are streams, and every one is answered."""
    arrived = 0
    three_here = asyncio.Event()

    async def answer(body: Body) -> Answer:
        nonlocal arrived
        if not is_trial(body):
            arrived += 1
            if arrived == 3:
                three_here.set()
            await three_here.wait()
        async for piece in whole_answer(body):
            yield piece

    with openai_server(answer) as server:
        report = run_bench(replace(SMALL, url=f"{server.url}/v1", num_requests=7, concurrency=3))

    assert server.most_at_once == 3
    figures = report.figures()
    assert (figures["num_answered"], figures["output_tokens"], figures["prompt_tokens"]) == (
        7,
        28,
        56,
    )
    assert report.model == server.bodies[-1]["model"] == "a-model"
    assert server.bodies[-1]["ignore_eos"] is True
    assert not report.errors


def test_open_loop_sends_without_waiting_for_answers() -> None:
    """All requests are in flight when none is answered before the last has come."""
    arrived = 0
    all_here = asyncio.Event()

    async def answer(body: Body) -> Answer:
        nonlocal arrived
        yield OK
        if not is_trial(body):
            arrived += 1
            if arrived == 6:
                all_here.set()
            await all_here.wait()
        yield event("a") + usage(8, 4) + DONE

    report = bench(answer, concurrency=None, request_rate=500.0, num_requests=6)

    assert report.figures()["num_answered"] == 6


def test_a_token_is_counted_though_its_event_has_no_text_or_several() -> None:
    """The server's count is the number of tokens; ITL are the gaps between events."""

    async def answer(body: Body) -> Answer:
        yield OK
        yield event("")
        yield event(" one two three")
        yield event("", "length")
        yield usage(8, 4)
        yield DONE

    report = bench(answer, num_requests=1)

    record = report.streams[0]
    assert (record.output_tokens, len(record.event_times_s), record.counted_by) == (4, 2, "usage")
    assert record.tpot_s == pytest.approx(record.gaps_s[0] / 3)
    assert "2.00 tokens an event" in report.describe()


def test_tokens_are_counted_by_log_probabilities_where_nothing_else_counts() -> None:
    """A server that counts no tokens may still name them."""

    async def answer(body: Body) -> Answer:
        yield OK
        yield event(" one two", logprobs={"tokens": [" one", " two"]})
        yield event("", "length", logprobs={"tokens": ["", ""]})
        yield DONE

    record = bench(answer, num_requests=1).streams[0]

    assert (record.output_tokens, len(record.event_times_s)) == (4, 2)
    assert record.counted_by == "logprobs"


def test_chunked_bodies_are_read_however_they_are_cut() -> None:
    """An event may lie across chunks and pieces; [DONE] too."""

    async def answer(body: Body) -> Answer:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        text = b"".join(event(" a") for _ in range(body["max_tokens"]))
        raw = chunked(text[:30]) + chunked(text[30:]) + chunked(usage(8, body["max_tokens"]))
        raw += chunked(DONE[:8]) + chunked(DONE[8:]) + b"0\r\n\r\n"
        for start in range(0, len(raw), 7):
            yield raw[start : start + 7]

    report = bench(answer)

    assert not report.errors
    assert [len(record.event_times_s) for record in report.streams] == [4] * 4


@pytest.mark.parametrize(
    ("refused", "used"),
    [("ignore_eos", "min_tokens"), ("ignore_eos min_tokens", ""), ("stream_options", "ignore_eos")],
)
def test_fields_a_server_refuses_are_not_sent(refused: str, used: str) -> None:
    """It is told not to stop in a way that it takes; if it cannot be told, that is said."""

    async def answer(body: Body) -> Answer:
        if set(refused.split()) & set(body):
            yield refusal(422, "extra fields not permitted")
            return
        yield OK
        yield event("a", "stop") + (usage(8, 1) if "stream_options" in body else b"") + DONE

    with openai_server(answer) as server:
        report = run_bench(replace(SMALL, url=server.url))

    assert report.stopping == used
    assert report.figures()["num_ended_early"] == 4
    assert "4 of 4 answers ended early" in report.describe()
    if used == "min_tokens":
        assert server.bodies[-1]["min_tokens"] == 4


def test_the_word_done_in_a_text_ends_no_answer() -> None:
    """Neither at the end of what came at once, nor split from its event."""

    async def answer(body: Body) -> Answer:
        yield OK + b'data: {"choices":[{"text":"data: [DONE]"}]}'
        await asyncio.sleep(0)
        yield b"\n\n" + event("a") + usage(8, 4) + DONE

    report = bench(answer)

    assert not report.errors
    assert report.figures()["output_tokens"] == 4 * report.figures()["num_answered"]


@pytest.mark.parametrize("said", [-5, True, "4", None, 1.5])
def test_a_count_that_is_none_is_not_believed(said: object) -> None:
    """Events are counted instead; `error: null` in a chunk is no error."""

    async def answer(body: Body) -> Answer:
        chunk = {"error": None, "choices": [{"text": "a"}]}
        yield OK + 3 * f"data: {json.dumps(chunk)}\n\n".encode()
        last = {"choices": [], "usage": {"completion_tokens": said, "prompt_tokens": said}}
        yield f"data: {json.dumps(last)}\n\n".encode() + DONE

    record = bench(answer, num_requests=1).streams[0]

    assert (record.output_tokens, record.counted_by, record.prompt_tokens) == (3, "events", 8)


def test_a_stream_without_done_that_said_why_it_ended_is_whole() -> None:
    """Not every server sends [DONE]."""

    async def answer(body: Body) -> Answer:
        yield OK + event("a") + event("", "length") + usage(8, body["max_tokens"])

    assert not bench(answer).errors


async def _break_off(body: Body) -> Answer:
    yield OK + event("a")


async def _refuse(body: Body) -> Answer:
    yield refusal(503, "too busy")


async def _say_nonsense(body: Body) -> Answer:
    yield OK + b"data: {nonsense\n\n" + DONE


async def _fail_midway(body: Body) -> Answer:
    yield OK + event("a") + b'data: {"error": {"message": "out of blocks"}}\n\n' + DONE


async def _hang_up(body: Body) -> Answer:
    yield b""


async def _speak_no_http(body: Body) -> Answer:
    yield b"220 mail.example.org\r\n\r\n"


async def _nest_deeply(body: Body) -> Answer:
    yield OK + b"data: " + b"[" * 100_000 + b"\n\n" + DONE


async def _say_nothing(body: Body) -> Answer:
    yield OK + DONE


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_break_off, "broke off before its end"),
        (_refuse, "HTTP 503: too busy"),
        (_say_nonsense, "no chunk"),
        (_nest_deeply, "no chunk"),
        (_fail_midway, "out of blocks"),
        (_hang_up, "closed without an answer"),
        (_speak_no_http, "no HTTP response"),
        (_say_nothing, "without tokens"),
    ],
)
def test_what_goes_wrong_is_counted_and_said(answer: Any, error: str) -> None:
    """A failed answer does not end the load, and is no part of the rates."""
    count = 0

    async def every_second(body: Body) -> Answer:
        nonlocal count
        count += not is_trial(body)
        bad = not is_trial(body) and count % 2
        async for piece in answer(body) if bad else whole(body):
            yield piece

    async def whole(body: Body) -> Answer:
        yield OK + event("a") + usage(8, 4) + DONE

    report = bench(every_second, concurrency=1)

    assert report.figures()["output_tokens"] == 8
    assert report.errors.total() == 2
    assert f"failed 2: {next(iter(report.errors))}" in report.describe()
    assert error in next(iter(report.errors))


def test_a_load_without_one_answer_is_an_error() -> None:
    """The message is what most requests came to."""
    with pytest.raises(BenchError, match=r"answered no request; 4 of 4.*too busy"):
        bench(_refuse)


def test_an_answer_that_does_not_come_in_time_has_failed() -> None:
    """It is cut after --timeout."""

    async def answer(body: Body) -> Answer:
        yield OK
        if not is_trial(body):
            await asyncio.Event().wait()
        yield event("a") + usage(8, 2) + DONE

    with pytest.raises(BenchError, match=r"within 0\.2 s"):
        bench(answer, num_requests=1, timeout=0.2)


def test_a_server_that_is_gone_is_one_message() -> None:
    """Nothing listens: no traceback."""
    with unused_port() as port:
        url = f"http://127.0.0.1:{port}"

        with pytest.raises(ServerUnreachableError, match="No server answers"):
            run_bench(replace(SMALL, url=url))
        with pytest.raises(
            BenchError, match="does not answer: no connection: nothing listens there"
        ):
            run_bench(replace(SMALL, url=url, model="m"))


def test_a_server_that_takes_no_field_says_why() -> None:
    """What it answered to the plainest request is the message, with what to do."""

    async def unknown(body: Body) -> Answer:
        yield refusal(400, "no such model")

    async def guarded(body: Body) -> Answer:
        yield refusal(401, "Wrong key.")

    refused = "refuses every request: HTTP "
    with pytest.raises(BenchError, match=rf"{refused}400: no such model\. Check --model"):
        bench(unknown)
    with pytest.raises(BenchError, match=rf"{refused}401: Wrong key\. It wants an API key"):
        bench(guarded)


class PieceClock:
    """A clock that goes on by a millisecond when it is read, as for each piece of an answer.

    So the quiet time of a load has its pieces however the machine stalls.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sleep = asyncio.sleep

    def read(self) -> float:
        self._now_s += 0.001
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        await self._sleep(0)
        while self._now_s < end_s:
            await self._sleep(0.001)


def test_interference_parts_quiet_gaps_from_disturbed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams run until the last intruder was answered, then they are cut."""
    clock, pause = PieceClock(), asyncio.sleep
    monkeypatch.setattr("time.perf_counter", clock.read)
    monkeypatch.setattr("asyncio.sleep", clock.sleep)

    async def answer(body: Body) -> Answer:
        yield OK
        if body["max_tokens"] == 2:
            yield event("a") + event("a") + usage(len(body["prompt"]), 2) + DONE
            return
        while True:
            yield event("a")
            await pause(0.001)

    report = bench(
        answer,
        intruder_tokens=50,
        intruder_every=0.05,
        num_intruders=2,
        quiet_seconds=1.0,
    )

    intruders = [record for record in report.answered if record.kind == "intruder"]
    assert [record.prompt_tokens for record in intruders] == [50, 50]
    assert [record.is_cut for record in report.streams] == [True, True]
    figures = report.figures()
    assert figures["quiet_itl_p99_ms"] > 0
    assert figures["disturbed_over_quiet"] > 0
    assert len(report.gaps_s(before_s=1.0)) > 0
    assert "beside long prompts" in report.describe()
    assert not report.errors


def test_every_answer_moves_the_bar_on(tmp_path: Any) -> None:
    """The bar ends where the load does."""
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("prompt_tokens,output_tokens\n5,3\n6,4\n")
    ends = []
    with openai_server() as server:
        options = replace(SMALL, url=server.url, length_file=str(lengths))
        report = run_bench(options, lambda: ends.append(1))

    assert len(ends) == num_counted(options) == 2
    assert sorted((r.prompt_tokens, r.output_tokens) for r in report.streams) == [(5, 3), (6, 4)]


def test_extra_fields_and_text_prompts_are_sent() -> None:
    """For servers with ways of their own."""
    with openai_server() as server:
        run_bench(replace(SMALL, url=server.url, extra_body='{"top_k": 1}', prompt_format="text"))

    assert server.bodies[-1]["top_k"] == 1
    assert len(server.bodies[-1]["prompt"].split()) == 8


def test_a_length_file_that_is_none_is_refused(tmp_path: Any) -> None:
    """Before anything is sent."""
    with openai_server() as server, pytest.raises(OptionError, match="length-file"):
        run_bench(replace(SMALL, url=server.url, length_file=str(tmp_path / "absent")))

    assert server.bodies == []
