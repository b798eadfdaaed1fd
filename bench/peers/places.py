"""Where peers live: outside the repository, in a cache."""

import os
from pathlib import Path

VARIABLE = "NANOSERVE_PEERS"


def peers_folder() -> Path:
    """Return the folder of environments, builds and model files; made if it is not there."""
    default = Path.home() / ".cache" / "nanoserve" / "peers"
    folder = Path(os.environ.get(VARIABLE) or default).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def model_file(name: str) -> Path:
    """Return a model file or folder by its name, like `smollm2-bf16.gguf`."""
    return peers_folder() / "models" / name


def python_of(environment: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return peers_folder() / environment / "bin" / "python"


def llama_tool(name: str) -> Path:
    """Return a program of the llama.cpp build."""
    return peers_folder() / "llama.cpp" / "build" / "bin" / name
