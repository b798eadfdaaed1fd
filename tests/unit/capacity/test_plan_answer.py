"""Answers: verdicts, lengths, stages, and what each engine does differently."""

from dataclasses import replace

import pytest

from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.workload import parse_workload
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.units import GIB
from tests.planner import planned, query


def part(plan: PlanAnswer, name: str) -> float:
    """Return a part of the budget in GiB; 0 where there is none."""
    return sum(line.size.mid for line in plan.lines if line.name == name) / GIB


def test_weights_past_the_budget_do_not_load() -> None:
    """70 B in bf16 on one H100: the reason has both figures."""
    plan = planned("llama-3.1-70b", "h100")

    assert plan.verdict == "does not load"
    assert "131.42 GiB" in plan.reason
    assert not plan.fits
    assert plan.fit.max_num_seqs == 1


def test_a_model_that_loads_may_not_serve() -> None:
    """70 B in 8 bits on one H100 holds fewer than four requests of 8,192 tokens."""
    plan = planned("llama-3.1-70b", "h100", weight_format=find_weight_format("fp8"))

    assert plan.verdict == "loads, cannot serve"
    assert plan.fit.p95.mid < 4


@pytest.mark.parametrize(
    ("engine", "slots", "flag"),
    [
        ("nanoserve", None, "--max-num-seqs 8"),
        ("nanoserve", 16, "--max-num-seqs 16"),
        ("vllm", 16, "--max-num-seqs 16"),
        ("llama.cpp", 16, "--parallel 16"),
    ],
)
def test_no_more_is_served_than_the_command_s_slots(
    engine: str, slots: int | None, flag: str
) -> None:
    """What fits beside them is said to fit, and which flag would serve it."""
    plan = planned("llama-3.1-8b", "h100", engine=engine, max_num_seqs=slots)
    served = int(flag.split()[1])

    assert plan.command is not None
    assert plan.command.endswith(flag)
    assert plan.fit.p95.mid > served
    assert plan.reason.startswith(f"{served} requests of {plan.choices.workload.p95:,} tokens run")
    assert plan.reason.endswith(
        f"the slots of --max-num-seqs; {plan.fit.p95.mid:,} fit, so it may be raised"
    )


def test_what_fits_is_served_where_there_are_slots_for_it() -> None:
    """55 fit under vLLM, which has hundreds of slots."""
    plan = planned("llama-3.1-8b", "h100", engine="vllm@0.21")

    assert plan.reason == f"{plan.fit.p95.mid} requests of 8,192 tokens fit at once"


def test_a_length_that_is_asked_for_must_fit() -> None:
    """A stated length larger than the pool is a server that does not start."""
    plan = planned("llama-3.1-8b", "rtx 4090", max_model_len=131_072)

    assert plan.verdict == "loads, cannot serve"
    assert "one request of 131,072 tokens takes 16.00 GiB" in plan.reason


def test_a_workload_must_be_within_the_longest_request() -> None:
    """Requests of 8,192 tokens are refused by a model of 2,048 whatever fits."""
    plan = planned("falcon-7b", "h100", workload=parse_workload("tokens=8192"))

    assert plan.verdict == "loads, cannot serve"
    assert "past the longest request, 2,048" in plan.reason


def test_a_length_left_open_is_cut_to_what_surely_fits() -> None:
    """Without --max-model-len the longest length of the cautious pool is planned."""
    plan = planned("llama-3.1-8b", "rtx 4090")

    assert plan.verdict == "serves"
    assert plan.max_model_len % 1024 == 0
    assert plan.max_model_len <= plan.longest_fit < 131_072
    assert plan.stage.cost.request_bytes(plan.max_model_len) <= plan.pool.low
    assert any("does not fit" in note for note in plan.notes)
    assert any("may fit" in note for note in planned("gemma-3-27b", "h100").notes)


def test_intervals_hold_their_figures() -> None:
    """Least, likely and most stand in order, for pool and tokens."""
    plan = planned()

    assert plan.pool.low <= plan.pool.mid <= plan.pool.high
    assert plan.tokens.low <= plan.tokens.mid <= plan.tokens.high
    assert plan.fit.p95.low <= plan.fit.p95.mid <= plan.fit.p95.high


def test_the_last_stage_of_llama_decides() -> None:
    """Of two stages the last has the sampler and the head; all have half of the cache."""
    one, two = planned("llama-3.1-8b", "h100"), planned("llama-3.1-8b", "2x h100", pp=2)

    assert len(two.stages) == 2
    assert two.binding == 1
    assert two.kv_facts.token_bytes * 2 == one.kv_facts.token_bytes
    assert two.stages[0].pool.mid > two.stages[1].pool.mid


def test_heads_past_the_last_are_replicated() -> None:
    """With 16 ranks each keeps one of 8 KV heads, as with 8."""
    eight, sixteen = planned("llama-3.1-70b", "8x h100"), planned("llama-3.1-70b", "16x h100")

    assert eight.kv_facts.token_bytes == sixteen.kv_facts.token_bytes == 40_960


def test_an_eager_engine_keeps_no_graphs() -> None:
    """Without recorded steps the pool gains what they took."""
    graphs, eager = (planned(engine="vllm@0.21", is_eager=one) for one in (False, True))

    assert part(graphs, "CUDA graphs") > 0
    assert part(eager, "CUDA graphs") == 0
    assert eager.pool.mid > graphs.pool.mid


def test_sglang_keeps_a_share_of_what_was_free() -> None:
    """The pool is what is free after loading, less that share; graphs must fit in it."""
    plan = planned(engine="sglang", utilization=0.88)
    free_before = plan.stage.total_bytes / GIB - part(plan, "outside the allocator")

    assert part(plan, "kept back") == pytest.approx(0.12 * free_before, rel=1e-6)
    assert [line.name for line in plan.lines if not line.is_inside] == ["CUDA graphs"]


def test_sglang_keeps_windows_of_some_families_apart() -> None:
    """gpt-oss has 12 full layers, and a pool of 0.8 as many tokens for the other 12."""
    plan = planned("gpt-oss-20b", "h100", engine="sglang")

    per_token = 12 * 2048 + 0.8 * 12 * 2048
    assert plan.tokens.mid == int(plan.pool.mid // per_token)


def test_sglang_divides_the_pool_between_states_and_tokens() -> None:
    """Qwen3-Next: 0.9 parts of states to one of keys and values, three states a request."""
    plan = planned("qwen3-next", "2x h200", engine="sglang")
    state = 36 * (plan.kv_facts.state_bytes and plan.stage.cost.request_bytes(1))

    assert state > 0
    requests = plan.stage.cost.requests(plan.pool.mid, 100_000).value
    assert requests == plan.tokens.mid // 100_000


def test_tensorrt_takes_a_share_of_what_is_left() -> None:
    """Nine tenths of what is free once engine and context are there."""
    plan = planned(engine="tensorrt-llm")

    assert part(plan, "KV pool") == pytest.approx(9 * part(plan, "kept back"), rel=1e-3)


def test_llama_cpp_pads_windows() -> None:
    """Gemma 3: windows of 1,024 and a step of 512 are kept as 1,536 cells."""
    plan = planned("gemma-3-27b", "h100", engine="llama.cpp")
    full, sliding = 10 * 8192 * 100_000, 52 * 1536 * 16 * 256 * 2

    assert plan.stage.cost.request_bytes(100_000, "steady") == full + sliding


def test_our_own_server_is_planned_as_it_boots() -> None:
    """The parts are the boot's: a driver context, weights with the rotary table, a reserve."""
    plan = planned("llama-3.1-8b", "h100", engine="nanoserve")

    assert plan.max_model_len == 2048
    assert part(plan, "weights") == pytest.approx(14.96, abs=0.02)
    assert sum(line.size.mid for line in plan.lines) == plan.stage.total_bytes
    assert (plan.command or "").startswith("nanoserve serve meta-llama/Llama-3.1-8B-Instruct")


def test_checkpoints_that_ask_for_fp8_keys_get_them() -> None:
    """`auto` follows the checkpoint; fp8 of sparse latent attention has its scales."""
    plan = planned("deepseek-v3.2", "8x h200", kv_cache_dtype="fp8")

    assert plan.choices.kv_format.name == "fp8_ds_mla"
    assert plan.kv_facts.token_bytes == 61 * (656 + 132)


def test_workloads_size_the_recommendation() -> None:
    """Requests of the 95th percentile decide, with 0.925 of what fits."""
    plan = planned(workload=parse_workload("p50=1800,p95=2400"))

    assert plan.fit.mean.mid > plan.fit.p95.mid
    assert plan.fit.max_num_seqs == int(0.925 * plan.fit.p95.mid)


def test_slots_bound_the_recommendation() -> None:
    """More than the slots that the plan was sized with is never recommended."""
    assert planned(max_num_seqs=16).fit.max_num_seqs == 16


@pytest.mark.parametrize(
    ("model", "engine", "num_states"),
    [
        ("qwen3-next", "vllm", 2),
        ("qwen3-next", "vllm@0.21", 2),
        ("qwen3-next", "vllm@0.20", 1),
        ("qwen3-next", "sglang", 1),
        ("llama-3.1-8b", "vllm", 1),
    ],
)
def test_states_of_a_request(model: str, engine: str, num_states: int) -> None:
    """VLLM keeps two with prefix caching: by default since 0.28; delta nets' boots since 0.21."""
    assert planned(model, "2x h200", engine=engine).choices.cache.num_states == num_states


def test_old_vllm_keeps_every_token() -> None:
    """Before groups of layers every layer of Gemma 3 kept all tokens: 62 GiB at 131,072."""
    plan = planned("gemma-3-27b", "h200", engine="vllm@0.8")

    assert plan.stage.cost.request_bytes(131_072) == 62 * GIB


def test_the_first_vllm_kept_latents_as_heads() -> None:
    """Before 0.7.1 DeepSeek-V3 kept 128 heads padded to 256: 57 times as much."""
    old = planned("deepseek-v3", "8x h200", engine="vllm@0.6.6", max_model_len=4096)

    assert old.stage.cost.request_bytes(16) == 16 * 61 * 16 * 2 * 256 * 2


def test_what_is_not_counted_is_said() -> None:
    """Layers that guess ahead are named."""
    assert any("multi-token" in note for note in planned("deepseek-v3", "8x h200").notes)


def test_files_that_cannot_be_the_whole_model_are_not_believed() -> None:
    """Half a download would be planned as a small model: the config counts, and it is said."""
    whole = query()
    num_bytes = answer(whole).weight_bytes
    for held, weights in ((num_bytes // 100, num_bytes), (num_bytes - 4096, num_bytes - 4096)):
        plan = answer(replace(whole, model=replace(whole.model, file_bytes=held)))

        assert plan.weight_bytes == weights
        is_said = any("is the download whole?" in note for note in plan.notes)
        assert is_said == (held != weights)
