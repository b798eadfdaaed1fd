"""What no figure of a log can say."""

from dataclasses import replace

from nanoserve.explain.boot_notes import boot_notes
from nanoserve.explain.boot_outcome import name_outcome
from nanoserve.explain.logged_boot import LoggedBoot, LoggedError
from nanoserve.units import GIB

SERVING = LoggedBoot(engine="vllm", is_ready=True)


def notes(boot: LoggedBoot) -> tuple[str, ...]:
    return boot_notes(boot, name_outcome(boot))


def test_a_driver_is_no_matter_of_memory() -> None:
    """It is said where to look."""
    (note,) = notes(LoggedBoot(engine="vllm", error=LoggedError("driver", "")))

    assert note.startswith("Memory is not the matter")


def test_a_log_that_ends_early_is_told() -> None:
    """With a pool or without, nobody knows how it went on."""
    assert "ends before the server was ready" in notes(LoggedBoot(engine="vllm"))[0]
    assert "ends before the server was ready" in notes(LoggedBoot(pool_bytes=GIB))[0]
    assert notes(SERVING) == ()


def test_what_was_taken_before_is_told_where_it_is_much() -> None:
    """A tenth of the card is, a hundredth is a desktop."""
    error = LoggedError("no room for pool", "", "pool")
    boot = LoggedBoot(engine="vllm", total_bytes=80 * GIB, free_bytes=70 * GIB, error=error)

    assert notes(boot) == ("10.00 GiB of the card were taken before the engine started.",)
    assert notes(replace(boot, free_bytes=79 * GIB)) == ()
    assert notes(replace(boot, free_bytes=None)) == ()


def test_preemptions_of_a_boot_that_serves() -> None:
    """Its warnings count them."""
    assert notes(replace(SERVING, num_preemptions=51)) == (
        "Once it served, 51 requests were sent back to wait.",
    )


def test_llamacpp_has_no_utilization() -> None:
    """What helps is named in its own options."""
    failed = LoggedBoot(engine="llama.cpp", error=LoggedError("out of memory", "", "profile"))
    (buffers,) = notes(failed)
    (weights,) = notes(replace(failed, error=LoggedError("out of memory", "", "weights")))

    assert "--ubatch-size" in buffers
    assert "--n-gpu-layers" in weights
    assert "utilization" not in buffers + weights


def test_memory_that_was_there_is_not_what_stopped_it() -> None:
    """More was free than was asked for; a little more is an allocator's rounding."""
    error = LoggedError("out of memory", "", "weights", need_bytes=10 * GIB, have_bytes=18 * GIB)
    boot = LoggedBoot(engine="vllm", total_bytes=127 * GIB, error=error)
    rounded = replace(boot, error=replace(error, have_bytes=round(10.5 * GIB)))

    assert any("More was free than was asked for" in note for note in notes(boot))
    assert not any("More was free" in note for note in notes(rounded))
