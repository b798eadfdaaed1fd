"""nanoserve: an LLM inference server you can read, and a planner you can trust.

Public names are imported on first use (PEP 562), so `import nanoserve` loads nothing heavy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoserve.launch.llm import LLM
    from nanoserve.sched.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

_HOME = {"LLM": "nanoserve.launch.llm", "SamplingParams": "nanoserve.sched.sampling_params"}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that owns it.

    Raises:
        ImportError: Something of the extra `serve` is not installed.
    """
    if name not in _HOME:
        message = f"module 'nanoserve' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from nanoserve.serve_extra import missing_extra

        explained = missing_extra(error)
        if explained is None:
            raise
        raise ImportError(explained) from error
