"""The HTTP front over a booted engine: what `serve` runs once the boot is done."""

import contextlib
import socket
from collections.abc import Sequence

from nanoserve import __version__
from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.launch.boot import BootedEngine
from nanoserve.options import ServerOptions
from nanoserve.server.app import build_app
from nanoserve.server.prompt_queue import PromptQueue
from nanoserve.server.serve import serve
from nanoserve.server.serving_context import ServingContext
from nanoserve.text.template_process import rendered_apart


def run_front(
    booted: BootedEngine,
    name: str,
    listening: socket.socket,
    options: ServerOptions,
    api_keys: Sequence[str],
) -> int:
    """Start the engine's loop, serve until told to stop, and return the exit code.

    Args:
        booted: A loaded model.
        name: What clients call it.
        listening: Bound and listening; closed on the way out.
        options: Of the server.
        api_keys: Who gets in; none lets everybody in.
    """
    limits = booted.limits
    engine = AsyncEngine(
        booted.core,
        limits,
        max_in_flight=limits.max_num_seqs + options.max_queue,
        expects_replays=booted.plan.decode_mode == "captured",
    )
    with contextlib.ExitStack() as stack:
        context = ServingContext(
            engine,
            booted.tokenizer,
            stack.enter_context(rendered_apart(booted.chat_template)),
            name,
            __version__,
            boot_info=booted.info,
            read_memory=booted.probe.read,
            grammar_compiler=booted.grammar_compiler,
            prompt_queue=PromptQueue(options.max_queued_tokens, engine.count_rejected),
        )
        stack.callback(context.close)
        engine.start()
        return serve(
            build_app(context, api_keys),
            engine,
            listening,
            drain_seconds=options.drain_seconds,
            log_level=options.log_level,
        )
