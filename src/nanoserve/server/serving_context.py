"""What every handler is given: the engine, the text side, and the model's name."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.engine.interface import TextCodec
from nanoserve.errors import UnknownModelError
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.server.convert import ChatRenderer

P = ParamSpec("P")
T = TypeVar("T")

_TEXT_THREADS = 2  # parsing, templates and tokenising, away from the event loop


def _text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="nanoserve-text")


@dataclass(frozen=True, slots=True)
class ServingContext:
    """The parts of a running server.

    Attributes:
        engine: Started by whoever made it.
        codec: The tokenizer.
        chat_template: None where the model has none.
        model_name: The one name that is served.
        version: Of nanoserve, as /version shows it.
        boot_info: What the boot says of itself, as `plan.boot_info` makes it; None where the
            engine was wired without one.
        read_memory: Asks the device how its memory stands now; None where there is none to ask.
        wall_clock: Unix seconds, for `created`.
        new_id: A fresh unique string, for answer and request ids.
        text_threads: Where parsing and tokenising run.
        started: Unix seconds at which the server was built.
    """

    engine: AsyncEngine
    codec: TextCodec
    chat_template: ChatRenderer | None
    model_name: str
    version: str
    boot_info: Mapping[str, Any] | None = None
    read_memory: Callable[[], MemoryReading] | None = None
    wall_clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    text_threads: ThreadPoolExecutor = field(default_factory=_text_threads)
    started: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, model: str | None) -> None:
        """Refuse any other model's name; None is the one that is served.

        Raises:
            UnknownModelError: Names what is served.
        """
        if model is not None and model != self.model_name:
            raise UnknownModelError(model, (self.model_name,))

    def close(self) -> None:
        """Let the text threads end, once nothing is served any more."""
        self.text_threads.shutdown(wait=False, cancel_futures=True)

    async def off_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a text thread, so that the event loop goes on answering."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.text_threads, lambda: work(*args, **kwargs))
