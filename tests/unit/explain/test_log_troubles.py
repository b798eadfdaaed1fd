"""What stops a boot beside the card's memory."""

import pytest

from nanoserve.explain.boot_log import read_boot_log
from nanoserve.explain.log_troubles import TROUBLES, raised_error
from nanoserve.explain.logged_boot import LoggedError

START = "Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"
READY = "INFO:     Application startup complete.\n"


def error_of(text: str) -> LoggedError | None:
    return read_boot_log(text).error


@pytest.mark.parametrize("trouble", [one for one in TROUBLES if not one.needs_figures])
def test_each_trouble_is_read(trouble) -> None:  # type: ignore[no-untyped-def]
    """In the log of an engine and in a paste of the line alone; not once a server serves."""
    line = f"RuntimeError: {trouble.anchor}\n"

    for text in (line, START + line):
        error = error_of(text)
        assert error is not None
        assert error.kind == trouble.kind
    assert error_of(START + line + READY) is None


def test_memory_is_asked_after_first() -> None:
    """A warning about the driver before a failed allocation is not the cause."""
    error = error_of(
        f"{START}UserWarning: CUDA unknown error\nCUDA out of memory. Tried to allocate 1.00 GiB\n"
    )

    assert error is not None
    assert error.kind == "out of memory"


def test_the_first_exception_counts() -> None:
    """Others only say that a process is gone."""
    error = raised_error(
        "Traceback (most recent call last): RuntimeError: Engine core initialization failed. See "
        "root cause above. "
    )
    cause = raised_error(
        "Traceback (most recent call last): File x KeyError: 'w13' RuntimeError: Engine core"
    )

    assert error is None
    assert cause is not None
    assert cause.text.startswith("KeyError: 'w13'")


def test_an_exception_without_a_traceback_is_a_mention() -> None:
    """Logs name exceptions that nobody raised."""
    assert raised_error("ignored ValueError: x") is None


def test_a_worker_that_was_killed() -> None:
    """The system ends a process that takes more memory than the machine has."""
    error = error_of(f"{START}RuntimeError: x. Failed core proc(s): {{'EngineCore_0': -9}}")
    failed = error_of(f"{START}Failed core proc(s): {{'EngineCore_0': 1}}")

    assert error is not None
    assert error.kind == "host memory"
    assert failed is None


def test_a_shell_says_what_was_killed() -> None:
    """As the last word it is the system's doing; in a sentence it is somebody's word."""
    shards = "Loading safetensors checkpoint shards:  60% Completed | 3/5 [00:31<00:20]\n"
    error = error_of(f"{shards}Killed\n")

    assert error is not None
    assert error.kind == "host memory"
    assert error_of(f"{shards}Killed requests: 3\n") is None


def test_a_length_past_the_models_is_an_option_without_the_rest_of_the_log() -> None:
    """The refusal's own words name the engine."""
    boot = read_boot_log(
        "pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, "
        "User-specified max_model_len (262144) is greater than the derived max_model_len "
        "(max_position_embeddings=131072.0 or model_max_length=None in model's config.json).\n"
    )

    assert boot.engine == "vllm"
    assert boot.error is not None
    assert boot.error.kind == "option"
