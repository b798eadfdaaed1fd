"""What every suite is told: where the server is, and where a model folder lies."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """Return the server's address, without a slash."""
    return os.environ["CONFORMANCE_URL"]


@pytest.fixture(scope="session")
def model_name() -> str:
    """Return what the server calls its model."""
    return os.environ["CONFORMANCE_MODEL"]


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """Return the folder of the default model's weights in float32, with its tokenizer."""
    return Path(os.environ["CONFORMANCE_MODEL_FOLDER"])
