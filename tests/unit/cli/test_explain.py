"""`nanoserve explain` at the command line."""

import io
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanoserve.cli.explain import ExplainSource, run_explain
from nanoserve.cli.log_source import read_metrics_page, read_tail
from nanoserve.cli.main import app
from nanoserve.errors import OptionError
from nanoserve.explain import log_text

LOGS = Path(__file__).parents[2] / "logs"
TOO_LONG = str(LOGS / "vllm_0.11_too_long_colours.log")
METRICS = LOGS / "nanoserve_metrics.txt"


def test_a_failed_boot_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Outcome, quoted line, table and fixes, without a colour where nobody sees it."""
    code = run_explain(ExplainSource(TOO_LONG), as_json=False)
    printed = capsys.readouterr().out

    assert code == 4
    assert "engine   vllm 0.11.0, Qwen/Qwen3-8B" in printed
    assert "outcome  request larger than pool" in printed
    assert "line 7   ValueError: To serve at least one request" in printed
    assert "kv pool  <- broke" in printed
    assert "not said" in printed
    assert "  1. --max-model-len 32912" in printed
    assert "\x1b" not in printed


def test_a_closed_stdin_holds_no_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process may be started without one."""
    monkeypatch.setattr(sys, "stdin", None)

    assert run_explain(ExplainSource("-"), as_json=False) == 3
    assert "Nothing was recognised" in capsys.readouterr().out


def test_the_card_fills_in_what_the_log_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """With 24 GiB known, a little more of them would do."""
    run_explain(ExplainSource(TOO_LONG, gpu="RTX 4090"), as_json=False)

    assert "  1. --gpu-memory-utilization 0.97" in capsys.readouterr().out


def test_a_plan_of_the_model_fills_in_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that did not load are counted, and other formats and cards tried."""
    log = str(LOGS / "vllm_weights_oom_k8s.log")

    code = run_explain(ExplainSource(log, gpu="L40S", model="llama-3.3-70b"), as_json=True)
    found = json.loads(capsys.readouterr().out)

    assert code == 4
    assert [fix["change"] for fix in found["fixes"]] == ["--tensor-parallel-size 4"]
    assert "planned again: weights 32." in found["fixes"][0]["effect"]
    assert "does not load" in found["notes"][-1]


def test_a_plan_needs_a_card() -> None:
    """The log does not say which it was."""
    with pytest.raises(OptionError, match="add --gpu"):
        run_explain(ExplainSource(TOO_LONG, model="qwen3-8b"), as_json=False)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with the exit code in it."""
    code = run_explain(ExplainSource(TOO_LONG), as_json=True)

    assert json.loads(capsys.readouterr().out)["exit_code"] == code == 4


def test_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A dash reads what another program prints, whatever its bytes."""
    content = b"\xff\x00CUDA out of memory. Tried to allocate 1.00 GiB\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    assert run_explain(ExplainSource("-"), as_json=False) == 4
    assert "an engine not recognised" in capsys.readouterr().out


def test_a_text_that_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, with the exit code of what failed otherwise."""
    (tmp_path / "letter").write_text("Dear Sir or Madam")

    assert run_explain(ExplainSource(str(tmp_path / "letter")), as_json=False) == 3
    assert "Nothing was recognised" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_page_of_metrics(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """From a file; an idle server is healthy."""
    assert run_explain(ExplainSource(metrics=str(METRICS)), as_json) == 0
    assert "healthy" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [False, True])
def test_a_page_of_nothing(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No metric of any engine."""
    (tmp_path / "page").write_text("up 1\n")

    assert run_explain(ExplainSource(metrics=str(tmp_path / "page")), as_json) == 3
    assert capsys.readouterr().out


@pytest.mark.parametrize(("log", "metrics"), [(None, None), ("a", "b")])
def test_one_of_the_two_is_given(log: str | None, metrics: str | None) -> None:
    """Neither or both are refused."""
    with pytest.raises(OptionError, match="one of the two"):
        run_explain(ExplainSource(log, metrics), as_json=False)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The refusal names it; a folder is none either."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(OptionError, match="cannot be read"):
            run_explain(ExplainSource(str(path)), as_json=False)


def test_the_command(tmp_path: Path) -> None:
    """Flags reach it and its exit code comes back."""
    result = CliRunner().invoke(app, ["explain", TOO_LONG, "--json"])

    assert result.exit_code == 4
    assert json.loads(result.stdout)["engine"] == "vllm"


@pytest.fixture
def metrics_url() -> Iterator[str]:
    """A server on a free port: metrics under `/metrics`, elsewhere a redirect off the machine."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/metrics"
            self.send_response(200 if is_page else 302)
            self.send_header("Location", "http://192.0.2.1/metrics")
            self.end_headers()
            if is_page:
                self.wfile.write(METRICS.read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_running_server_is_asked(metrics_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its address alone leads to the page."""
    assert run_explain(ExplainSource(metrics=metrics_url), as_json=False) == 0
    assert "running 0" in capsys.readouterr().out


def test_two_looks_count_what_lies_between(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """7 preemptions before the first look, 9 at the second: 2 of the time between."""
    page = (
        "vllm:num_preemptions_total {}\nvllm:num_requests_running 40\nvllm:kv_cache_usage_perc 1\n"
    )
    pages, waited = [page.format(7), page.format(9)], list[float]()
    monkeypatch.setattr("nanoserve.cli.explain.read_metrics_page", lambda url: pages.pop(0))
    monkeypatch.setattr("time.sleep", waited.append)

    code = run_explain(ExplainSource(metrics="http://localhost", over_s=30.0), as_json=True)

    assert (code, waited) == (4, [30.0])
    assert json.loads(capsys.readouterr().out)["metrics"]["num_preemptions"] == 2


def test_a_redirect_is_not_followed(metrics_url: str) -> None:
    """No other host is asked, whoever says so."""
    with pytest.raises(OptionError, match="answers 302"):
        read_metrics_page(f"{metrics_url}/other?a=1")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/metrics",
        "http://10.0.0.1:8000",
        "https://127.0.0.1:8000",
        "file:///etc/passwd",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://[::1",
        "http://",
        "http://localhost.example.com",
        "http://127.0.0.1@example.com",
    ],
)
def test_other_hosts_are_refused(url: str) -> None:
    """Nothing is sent, and what to do instead is said."""
    with pytest.raises(OptionError, match="no other host"):
        read_metrics_page(url)


@pytest.fixture
def guarded() -> Iterator[tuple[str, list[str | None]]]:
    """A server that wants the key `right-key`, and the Authorization of each request it got."""
    seen: list[str | None] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200 if seen[-1] == "Bearer right-key" else 401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_key_is_sent_to_a_guarded_server(
    guarded: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, from the variable that the other commands read."""
    url, seen = guarded
    monkeypatch.setenv("NANOSERVE_API_KEY", "right-key")

    assert read_metrics_page(url) == ""
    assert seen == ["Bearer right-key"]


@pytest.mark.parametrize(
    ("key", "sent", "advice"),
    [
        ("", None, "wants an API key: put it into NANOSERVE_API_KEY"),
        ("wrong-key", "Bearer wrong-key", "refuses the key in NANOSERVE_API_KEY"),
    ],
)
def test_a_401_says_what_to_do_about_the_key(
    guarded: tuple[str, list[str | None]],
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    sent: str | None,
    advice: str,
) -> None:
    """A key that is missing is told from one that is refused."""
    url, seen = guarded
    monkeypatch.setenv("NANOSERVE_API_KEY", key)

    with pytest.raises(OptionError, match=advice):
        read_metrics_page(url)
    assert seen == [sent]


@pytest.mark.parametrize("key", ["two\nlines", "k\u0142ucz"])
def test_a_key_that_no_header_holds(
    guarded: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """It is refused without being printed or sent."""
    url, seen = guarded
    monkeypatch.setenv("NANOSERVE_API_KEY", key)

    with pytest.raises(OptionError, match="cannot be sent") as caught:
        read_metrics_page(url)
    assert key not in str(caught.value)
    assert seen == []


def test_a_server_that_is_not_there() -> None:
    """A port nobody listens on is told from a page that is wrong."""
    with socket.socket() as bound:  # or somebody else might listen on it meanwhile
        bound.bind(("127.0.0.1", 0))

        with pytest.raises(OptionError, match="cannot be read"):
            read_metrics_page(f"http://127.0.0.1:{bound.getsockname()[1]}")


def test_the_end_of_a_stream_keeps_its_line_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped is counted: of 5 MiB of lines, the last 2 are kept."""
    mebibyte = 1024 * 1024
    monkeypatch.setattr("nanoserve.cli.log_source.MAX_BYTES", 2 * mebibyte)
    line = b"x" * 1023 + b"\n"

    content, first_number = read_tail(io.BytesIO(line * 5 * 1024))

    assert len(content) == 2 * mebibyte
    assert first_number == 3 * 1024 + 1
    assert log_text.plain_log(content.decode(), first_number).numbers[0] == first_number
