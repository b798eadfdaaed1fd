"""A stand-in for other servers: starts at once, and dies when it is told to."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.peers import thin_http
from bench.peers.peers import Peer

_SERVER = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from thin_http import listen

left = int(sys.argv[3])

async def accept(answer):
    global left
    left -= 1
    if left == 0:
        os._exit(1)
    while not answer.is_over:
        answer.write([7])
        await asyncio.sleep(0)

async def main():
    await listen(int(sys.argv[2]), "thin", accept)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def unused_port() -> Iterator[int]:
    """Yield a port that nothing listens on, and that the system gives to nobody meanwhile.

    Who asks for it by its number, as asyncio's servers do, may listen on it beside our socket.
    """
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind(("127.0.0.1", 0))
        yield int(holding.getsockname()[1])


def command_of(port: int, dies_at: int = 0) -> list[str]:
    """Return the command of a server that says 7 until it may stop.

    Args:
        port: Where it listens.
        dies_at: The completion at which it ends itself; 0 for none.
    """
    folder = str(Path(thin_http.__file__).parent)
    return [sys.executable, "-c", _SERVER, folder, str(port), str(dies_at)]


def peer_of(**changes: object) -> Peer:
    """Return a peer that is that server; it has no interference, which takes half a minute."""
    python = Path(sys.executable)
    peer = Peer("thin", "bf16", lambda _, port: command_of(port), python, ("nanoserve", python))
    return replace(peer, **{"has_interference": False, **changes})  # type: ignore[arg-type]
