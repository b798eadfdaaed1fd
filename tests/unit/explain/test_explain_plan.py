"""What a plan of the model adds to an explained log."""

from nanoserve.explain.explain import LACKING, Explanation, explain_log
from nanoserve.explain.explain_plan import with_plan
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.read_model import read_planned_model

START = "Initializing a V1 LLM engine (v0.11.0) with config: model='m', max_seq_len={length}\n"
NO_ROOM = "ValueError: No available memory for the cache blocks.\n"


def planned(text: str, model: str, gpu: str, length: int = 8192) -> Explanation:
    card = find_gpu(gpu)
    explanation = explain_log(START.format(length=length) + text, card.memory_bytes)
    return with_plan(explanation, read_planned_model(model), card)


def test_changes_are_planned_where_the_log_lacks_figures() -> None:
    """An 8B model in 16 bits on 16 GB: eight bits a weight or a second card would do."""
    explanation = planned(NO_ROOM, "llama-3.1-8b", "RTX 4080")

    changes = [fix.change for fix in explanation.fixes]
    assert "--quantization fp8" in changes
    assert "--tensor-parallel-size 2" in changes
    assert all(fix.effect.startswith("planned again: weights ") for fix in explanation.fixes)
    assert LACKING not in explanation.notes
    assert "A plan of meta-llama/Llama-3.1-8B" in explanation.notes[-1]


def test_the_logs_own_figures_win() -> None:
    """A flag is offered once, with what the log's figures gave for it."""
    refused = (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (4.00 GiB). "
        "Based on the available memory, the estimated maximum model length is 32768."
    )
    explanation = planned(refused, "llama-3.1-8b", "RTX 4090", length=131_072)

    flags = [fix.change.split()[0] for fix in explanation.fixes]
    assert "--max-model-len 32768" in [fix.change for fix in explanation.fixes]
    assert len(flags) == len(set(flags))


def test_a_healthy_boot_gets_the_verdict_alone() -> None:
    """Nothing needs to change."""
    healthy = "Available KV cache memory: 4.00 GiB\nApplication startup complete.\n"
    explanation = planned(healthy, "llama-3.1-8b", "RTX 4090")

    assert not any("planned again" in fix.effect for fix in explanation.fixes)
    assert "says: " in explanation.notes[-1]


def test_what_cannot_be_planned_is_said() -> None:
    """The log stands as it was explained, and the planner's refusal beside it."""
    odd = f"tensor_parallel_size=3, {NO_ROOM}"
    explanation = planned(odd, "llama-3.1-8b", "RTX 4080")

    assert "could not be planned as the log has it" in explanation.notes[-1]
    assert explanation.outcome.kind == "no room for pool"


def test_each_engine_is_planned_with_formats_it_has() -> None:
    """llama.cpp knows no fp8: its own 8 bits are tried, and the plan is no refusal."""
    log = (
        "llama_model_load: error loading model\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 40000.00 MiB on device 0: "
        "cudaMalloc failed: out of memory\n"
    )
    card = find_gpu("RTX 4090")
    explained = with_plan(
        explain_log(log, card.memory_bytes), read_planned_model("llama-3.1-8b"), card
    )

    assert "A plan of meta-llama/Llama-3.1-8B-Instruct on RTX 4090 says" in explained.notes[-1]


def test_a_version_that_nobody_knows_is_planned_as_the_newest() -> None:
    """A log of a fork may state any number; that is no reason to plan nothing."""
    log = START.format(length=8192).replace("v0.11.0", "v7.3.1") + NO_ROOM
    card = find_gpu("RTX 4080")
    explained = with_plan(
        explain_log(log, card.memory_bytes), read_planned_model("llama-3.1-8b"), card
    )

    assert not any("could not be planned" in note for note in explained.notes)


def test_a_plan_that_contradicts_the_log_offers_nothing() -> None:
    """An 8B model leaves an H100 room; what would serve anyhow is no remedy."""
    explanation = planned(NO_ROOM, "llama-3.1-8b", "h100")

    assert explanation.fixes == ()
    assert "as logged it should have started" in explanation.notes[-1]


def test_an_early_release_is_offered_no_eight_bits() -> None:
    """Release 0.2.7 of vLLM had neither weights nor a cache in fp8; more cards it knows."""
    text = START.format(length=8192).replace("V1 LLM engine (v0.11.0)", "LLM engine (v0.2.7)")
    card = find_gpu("RTX 4080")
    explanation = with_plan(
        explain_log(text + NO_ROOM, card.memory_bytes), read_planned_model("llama-3.1-8b"), card
    )

    changes = [fix.change for fix in explanation.fixes]
    assert "--tensor-parallel-size 2" in changes
    assert not any("fp8" in change for change in changes)
