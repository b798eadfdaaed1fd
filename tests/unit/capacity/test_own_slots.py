"""Slots of our own server: as many as fit and one more does not."""

from dataclasses import replace

import pytest

from nanoserve.capacity.own_slots import served_at_once, with_slots_for
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.remedies import remedies
from nanoserve.spec.gpu_spec import custom_gpu
from nanoserve.units import GIB, MIB
from tests.planner import planned, query


def on_cpu(num_bytes: int, model: str = "llama-3.2-1b", **changes: object) -> PlanAnswer:
    """Return a plan of our own server in so much memory of a machine."""
    memory = custom_gpu(num_bytes)
    host = replace(
        memory, compute_capability="host", host_has=frozenset({"bf16", "native"}), evidence="stated"
    )
    return answer(replace(query(model, engine="nanoserve"), gpu=host, num_gpus=1, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("gib", [4, 8, 33])
def test_the_most_slots_are_the_most(gib: int) -> None:
    """With one more the boot is refused, or may be."""
    plan = with_slots_for(on_cpu(gib * GIB))
    slots = plan.choices.max_num_seqs

    assert served_at_once(plan) == slots > 8
    more = answer(replace(plan.query, max_num_seqs=slots + 1))
    assert served_at_once(more) == 0


def test_as_many_as_are_wanted() -> None:
    """Not more than the users, and never fewer than serve them where they fit."""
    assert with_slots_for(on_cpu(8 * GIB), 3).choices.max_num_seqs == 3
    assert with_slots_for(on_cpu(8 * GIB), 40).choices.max_num_seqs == 40
    assert with_slots_for(on_cpu(8 * GIB), 1).choices.max_num_seqs == 1


def test_a_gpus_slots_shrink_its_pool() -> None:
    """Activations and recorded steps grow with the slots; all of them fit beside each other."""
    few = planned("llama-3.2-1b", "rtx 4090", engine="nanoserve")
    most = with_slots_for(few)

    assert most.pool.mid < few.pool.mid
    assert served_at_once(most) == most.choices.max_num_seqs > served_at_once(few)


def test_stated_slots_and_other_engines_stay() -> None:
    """Nobody is given other slots than were asked for."""
    stated = on_cpu(8 * GIB, max_num_seqs=2)
    assert with_slots_for(stated) is stated
    other = planned("llama-3.2-1b", "rtx 4090")
    assert with_slots_for(other) is other


def test_few_slots_serve_as_many() -> None:
    """Two slots are what was asked for, and no lack of room."""
    plan = on_cpu(8 * GIB, max_num_seqs=2)

    assert plan.fits
    assert plan.reason.startswith("2 requests of 2,048 tokens")


def test_a_boot_that_is_refused_is_said_and_mended() -> None:
    """The server's own words; every remedy, planned again, is a boot that starts."""
    plan = on_cpu(3500 * MIB, max_num_seqs=64)
    found = remedies(plan)

    assert plan.verdict == "loads, cannot serve"
    assert "the server refuses to start so" in plan.reason
    assert plan.command is None
    words = [remedy.words.split()[0] for remedy in found]
    assert words[:2] == ["--max-num-seqs", "--max-model-len"]
    for remedy in found:
        assert remedy.plan.fits
        assert remedy.plan.command
        assert not remedy.plan.stage.refusal
    assert sum(line.size.mid for line in plan.lines) == plan.stage.total_bytes


def test_far_too_many_slots_become_as_many_as_fit() -> None:
    """Where not even their activations fit, fewer slots are still offered."""
    found = remedies(on_cpu(8 * GIB, max_num_seqs=100_000))

    words, slots = found[0].words.split()
    assert (words, found[0].plan.choices.max_num_seqs) == ("--max-num-seqs", int(slots))
    assert int(slots) > 8


def test_a_default_length_that_does_not_fit_is_cut() -> None:
    """A GPU with room for 1,024 tokens is planned with them, and started so."""
    need = planned("llama-3.1-8b", "h100", engine="nanoserve", max_model_len=2048)
    held = sum(line.size.mid for line in need.lines[:-1] if line.name != "kept back")
    memory = int((held + 1536 * 128 * 1024) / 0.9)
    gpu = replace(need.query.gpu, memory_bytes=memory)
    plan = answer(replace(need.query, gpu=gpu, max_model_len=None))

    assert plan.max_model_len == 1024
    assert "--max-model-len 1024" in (plan.command or "")
    assert any("the server's default, does not fit" in note for note in plan.notes)


def test_shares_of_a_machines_memory_are_refused() -> None:
    """The flag would do nothing."""
    with pytest.raises(Exception, match="held by demand"):
        on_cpu(8 * GIB, utilization=0.5)
