"""Why a record's pool is set apart: it speaks against itself, or leaves too much of it open.

Asks the record and the model alone, never what the prediction is off by.
"""

from dataclasses import replace

from nanoserve.bench.boot_case import BootCase
from nanoserve.bench.boot_predict import CasePrediction, weights_around
from nanoserve.capacity.engine_memory import activation_bytes

MODEL_DOUBTED_ABOVE = 0.1  # share that weights may be off before the model is doubted
OTHERS_ABOVE = 3  # times the most that one process holds outside the allocator
OPEN_ABOVE = 0.1  # share of the pool that one fact may leave open


def doubts_of(case: BootCase, predicted: CasePrediction) -> tuple[str, ...]:
    """Return the reasons to set a pool apart, in a few words each; none for most."""
    return (*_contradictions(case, predicted), *_open_facts(case, predicted))


def _contradictions(case: BootCase, predicted: CasePrediction) -> tuple[str, ...]:
    """Return what the record's own figures say against what it states."""
    found = []
    logged = case.boot.weight_bytes
    if logged and abs(predicted.weights / logged - 1) > MODEL_DOUBTED_ABOVE:
        found.append("weights are not the model's")
    held = case.boot.non_torch_bytes or 0
    if held > OTHERS_ABOVE * max(1, predicted.non_torch.high):
        found.append("other processes")
    return tuple(found)


def _open_facts(case: BootCase, predicted: CasePrediction) -> tuple[str, ...]:
    """Return the facts not stated that alone decide over more than a tenth of the pool.

    On unified memory what is free at the start includes the page cache, which fills as the
    weights are read: the same command takes gigabytes more of it cold than warm.
    """
    most = OPEN_ABOVE * max(0, predicted.pool.mid)
    found = []
    if "unified memory" in case.assumed:
        found.append("unified memory decides")
    if "length" in case.assumed and _open_by_length(case) > most:
        found.append("length decides")
    if _open_by_images(case) > most:
        found.append("images decide")
    if "weight format" in case.assumed:
        doubt = weights_around(case, predicted.weights)
        if doubt.high - predicted.weights > most:
            found.append("weight format decides")
    return tuple(found)


def _open_by_length(case: BootCase) -> int:
    """Return by how much the profiled step grows from one token budget to the longest prompt."""
    load = case.load()
    short = replace(load, max_model_len=load.max_num_batched_tokens)
    longest = activation_bytes(case.profile, load)
    return abs(longest.mid - activation_bytes(case.profile, short).mid)


def _open_by_images(case: BootCase) -> int:
    """Return by how much the profile grows from no image to the largest that it may run.

    How many images a prompt may have, and of how many pixels, no record says. V0 profiles that
    many whole; V1 gives its encoder no more than a step's tokens (`compute_mm_encoder_budget`).
    """
    load = case.load()
    if not load.sees_images or case.profile.is_chunked:
        return 0
    text = activation_bytes(case.profile, replace(load, sees_images=False))
    return activation_bytes(case.profile, load).high - text.mid
