"""The client of `chat` and `bench serve` against servers that are none, over real sockets."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from nanoserve.bench.server_client import cut_short, server_client, unreachable
from tests.openai_server import MODELS, TIMEOUT_S

Speak = Callable[[socket.socket], None]


@contextmanager
def listener(speak: Speak) -> Iterator[str]:
    """Yield the address of a server that takes one connection and does `speak` with it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_S)

        def run() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                speak(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            thread.join(TIMEOUT_S)


def reset(connection: socket.socket) -> None:
    """End a connection as a process does that dies with bytes unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def say(words: bytes) -> Speak:
    return lambda connection: connection.sendall(words)


def problem_of(url: str) -> str:
    """Return what is said of a server at an address."""
    with server_client() as client, pytest.raises(httpx.HTTPError) as failed:
        client.get(url)
    return str(unreachable(url, failed.value))


@pytest.mark.parametrize(
    ("speak", "reason"),
    [
        (say(b""), "it closed the connection without an answer in HTTP"),
        (say(b"SSH-2.0-OpenSSH_9.6\r\n"), "it closed the connection without an answer in HTTP"),
        (say(b"\x15\x03\x01\x00\x02\x02\x46"), "what listens there does not answer in HTTP"),
        (reset, "it reset the connection"),
    ],
)
def test_a_server_that_is_none_is_named_with_its_address(speak: Speak, reason: str) -> None:
    """A shell's, a mail's, one of TLS, or one that dies: a sentence, and what to check."""
    with listener(speak) as address:
        problem = problem_of(f"http://{address}")

    assert problem.startswith(f"No server answers at http://{address}: {reason}. ")
    assert "Check the address and its port." in problem


def test_tls_to_a_server_of_plain_http() -> None:
    """The advice is the other scheme."""
    with listener(say(MODELS)) as address:
        problem = problem_of(f"https://{address}")

    assert f"No server answers at https://{address}: it does not speak TLS" in problem
    assert "given as http://, not https://." in problem


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectTimeout("timed out"), "no connection within 10 s"),
        (httpx.ReadTimeout("timed out"), "no answer within 30 s"),
    ],
)
def test_a_timeout_says_how_long(error: httpx.HTTPError, words: str) -> None:
    """In seconds."""
    assert words in str(unreachable("http://x", error))


@pytest.mark.parametrize(
    ("speak", "reason"),
    [
        (say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), "it closed the connection"),
        (reset, "it reset the connection"),
    ],
)
def test_a_server_that_is_there_broke_off(speak: Speak, reason: str) -> None:
    """It is not said to be at another address."""
    with (
        listener(speak) as address,
        server_client() as client,
        pytest.raises(httpx.HTTPError) as failed,
    ):
        client.get(f"http://{address}")

    message = f"The server at http://a broke off: {reason}. Its log says why."
    assert str(cut_short("http://a", failed.value)) == message


def test_a_server_that_went_away_is_not_there() -> None:
    """Between two questions, for instance."""
    assert "No server answers at http://a" in str(cut_short("http://a", httpx.ConnectError("no")))


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "socks5://127.0.0.1:1", "htt://x:y"])
def test_proxies_of_the_environment_are_not_asked(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on this machine is behind none, and a wrong one is no error of ours."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with listener(say(MODELS)) as address, server_client() as client:
        assert client.get(f"http://{address}").status_code == 200
