"""`serve`: the address it binds and prints."""

import gc
from pathlib import Path

import pytest

from nanoserve.cli.serve import (
    ConsoleListener,
    choose_openmp_waits,
    curl_line,
    serve_model,
    server_url,
)
from nanoserve.errors import OptionError
from nanoserve.options import EngineOptions, ServerOptions


def test_ipv6_address_is_printed_in_brackets() -> None:
    """Both kinds of address make a URL that clients take, pasted into a shell."""
    assert server_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert server_url("::1", 80) == "http://[::1]:80"
    assert curl_line(server_url("::1", 80), "m").startswith("curl 'http://[::1]:80'/v1/")


def test_curl_line_of_a_guarded_server_takes_the_key_from_the_shell() -> None:
    """The command works where the key is set, and no key is printed."""
    line = curl_line("http://x", "m", is_guarded=True)

    assert '/v1/completions -H "Authorization: Bearer $NANOSERVE_API_KEY" -d ' in line


def test_unreadable_keys_stop_before_the_boot(tmp_path: Path) -> None:
    """A server that was to be guarded does not start open."""
    options = ServerOptions(port=0, api_key_file=str(tmp_path / "absent"))

    with pytest.raises(OptionError, match="--api-key-file"):
        serve_model(EngineOptions(), options)


@pytest.mark.parametrize("host", ["a" * 70, "\u00e9" * 70, "a..b"])
def test_host_that_is_none_is_an_option_error(host: str) -> None:
    """No boot begins, and the message names the address."""
    with pytest.raises(OptionError, match=r"Cannot listen on .* Check --host"):
        serve_model(EngineOptions(), ServerOptions(host=host, port=0))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OptionError("refused")])
def test_a_boot_that_ends_under_its_bar_gives_the_cursor_back(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar hides it; who interrupts a start goes on in the same terminal."""

    def boot(options: EngineOptions, listener: ConsoleListener) -> None:
        listener.stage_started("weights")
        listener.progress(1, 2)
        raise error

    monkeypatch.setenv("FORCE_COLOR", "1")  # for Rich, a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("nanoserve.cli.serve.import_boot", lambda listener: boot)

    with pytest.raises(type(error)):
        serve_model(EngineOptions(), ServerOptions(port=0))
    gc.enable()

    _, hidden, after = capsys.readouterr().out.rpartition("\x1b[?25l")
    assert hidden
    assert "\x1b[?25h" in after


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_openmp_waits_as_the_operator_chose(chosen: dict[str, str], found: dict[str, str]) -> None:
    """A short wait is the default; whoever names a policy or a number of spins has it."""
    environment = dict(chosen)

    choose_openmp_waits(environment)

    assert environment == found
