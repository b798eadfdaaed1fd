"""Offline generation: `LLM("smollm2").generate([...])` without a server."""


class LLM:
    """An engine in this process."""
