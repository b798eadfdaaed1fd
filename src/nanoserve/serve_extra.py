"""The extra `serve`: what is said where the planner alone is installed and a server is wanted."""

# What `pyproject.toml` lists, by the names they are imported by, and numpy, which comes with them.
SERVE_MODULES = frozenset(
    {
        "fastapi",
        "gguf",
        "httptools",
        "httpx",
        "huggingface_hub",
        "jinja2",
        "llguidance",
        "numpy",
        "prometheus_client",
        "pydantic",
        "safetensors",
        "starlette",
        "tokenizers",
        "torch",
        "uvicorn",
        "uvloop",
    }
)


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return what is missing and how to install it; None where it is nothing of the extra's."""
    module = (error.name or "").partition(".")[0]
    if module not in SERVE_MODULES:
        return None
    return (
        f"This needs {module}, which is not installed. Install it: pip install 'nanoserve[serve]'"
    )
