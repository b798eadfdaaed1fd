"""A load explained, and the flag to change."""

import pytest

from nanoserve.explain.explain_load import explain_load

VLLM = """\
vllm:num_preemptions_total{{engine="0"}} {preemptions}
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:{usage}{{engine="0"}} {held}
"""


def page(**values: object) -> str:
    figures = {"preemptions": 0, "running": 40, "waiting": 0, "usage": "kv_cache_usage_perc"}
    return VLLM.format(**{**figures, "held": 0.97, **values})


@pytest.mark.parametrize("usage", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
def test_a_server_that_preempts_takes_fewer_requests(usage: str) -> None:
    """40 requests hold 97 %: 41 fit, 38 leave room; in either version's names."""
    load = explain_load(page(preemptions=7, usage=usage))

    assert load is not None
    assert (load.diagnosis.kind, load.exit_code) == ("preempting", 4)
    assert load.fixes[0].change == "--max-num-seqs 38"
    assert load.fixes[1].change == "--kv-cache-dtype fp8"


def test_a_queue_before_an_idle_pool_is_no_matter_of_memory() -> None:
    """More slots would be taken."""
    load = explain_load(page(waiting=9, held=0.25))

    assert load is not None
    assert (load.diagnosis.kind, load.exit_code) == ("slots full", 0)
    assert load.fixes[0].change == "--max-num-seqs 148"


def test_a_full_pool_with_a_queue() -> None:
    """A larger pool comes first."""
    load = explain_load(page(waiting=9))

    assert load is not None
    assert (load.diagnosis.kind, load.exit_code) == ("pool full", 4)
    assert load.fixes[0].change == "--kv-cache-dtype fp8"


def test_sglang_retracts() -> None:
    """Its names, its flags; older ones carry an underscore."""
    for mark in (":", "_"):
        load = explain_load(
            f"sglang{mark}num_running_reqs 20\nsglang{mark}token_usage 0.98\n"
            f"sglang{mark}num_retracted_reqs 3\nsglang{mark}max_running_requests 64\n"
        )

        assert load is not None
        assert load.diagnosis.kind == "preempting"
        assert load.fixes[0].change == "--max-running-requests 18"
        assert load.metrics.max_num_seqs == 64


def test_a_page_of_something_else_is_none() -> None:
    """Neither metrics nor a log."""
    assert explain_load("process_cpu_seconds_total 12.5\n") is None


def test_a_load_is_json() -> None:
    """Figures, diagnosis and changes."""
    load = explain_load(page(preemptions=7))

    assert load is not None
    assert load.as_dict()["metrics"]["num_running"] == 40


def own_page(running: float, waiting: float, held: float) -> str:
    """Return a page of this server's, with a pool of 100 MiB and 1 GiB left of the device."""
    return (
        f"nanoserve:num_requests_running {running}\nnanoserve:num_requests_waiting {waiting}\n"
        f"nanoserve:kv_cache_usage_perc {held}\nnanoserve:num_preemptions_total 7.0\n"
        'nanoserve:memory_bytes{kind="planned",part="kv pool"} 1.048576e+08\n'
        'nanoserve:memory_bytes{kind="planned",part="unassigned"} 1.073741824e+09\n'
    )


def test_this_server_is_given_the_pool_that_its_load_needs() -> None:
    """Ten run on 100 MiB and thirty wait: 40 times 10 MiB, over 92.5 %, is 433 MiB."""
    load = explain_load(own_page(10, 30, 1.0))

    assert load is not None
    assert [fix.change for fix in load.fixes] == ["--max-num-seqs 9", "--kv-cache-bytes 433MiB"]
    assert "43 would fit" in load.fixes[1].effect


def test_a_pool_is_never_larger_than_what_is_left() -> None:
    """A thousand waiting requests ask for more than the device has."""
    load = explain_load(own_page(10, 1000, 1.0))

    assert load is not None
    assert load.fixes[1].change == "--kv-cache-bytes 1124MiB"


def test_a_peak_that_is_over_asks_for_a_larger_pool_too() -> None:
    """The pool was too small then, whoever runs now."""
    load = explain_load(own_page(0, 0, 0.0))

    assert load is not None
    assert load.diagnosis.kind == "preempted earlier"
    assert load.fixes[0].change == "--kv-cache-bytes 200MiB"


def test_llamacpp_is_asked_for_slots() -> None:
    """It shares its context out among them."""
    load = explain_load("llamacpp:requests_processing 4\nllamacpp:requests_deferred 9\n")

    assert load is not None
    assert (load.diagnosis.kind, load.exit_code) == ("slots full", 0)
    assert load.fixes[0].change == "--parallel 13"
    assert "--ctx-size must grow" in load.fixes[0].effect


def test_lengths_of_finished_requests_size_slots_and_pool() -> None:
    """18 that finished and half of 15 that run sampled 4,896 tokens, 192 each; 33 prompts of 64.

    10 of them fit 2,048 tokens, and 18 that ask take 4,608 at their end.
    """
    load = explain_load(
        "nanoserve:num_requests_running 15\nnanoserve:num_requests_waiting 3\n"
        "nanoserve:kv_cache_usage_perc 0.773\nnanoserve:num_preemptions_total 20\n"
        "nanoserve:request_success_total 18\nnanoserve:prompt_tokens_total 2112\n"
        "nanoserve:generation_tokens_total 4896\nnanoserve:block_size 16\n"
        "nanoserve:num_blocks_free 28\nnanoserve:num_blocks_used 100\n"
        'nanoserve:memory_bytes{kind="planned",part="kv pool"} 41943040\n'
        'nanoserve:memory_bytes{kind="planned",part="unassigned"} 1073741824\n'
    )

    assert load is not None
    assert load.metrics.pool_tokens == 2048
    assert [fix.change for fix in load.fixes] == ["--max-num-seqs 10", "--kv-cache-bytes 98MiB"]
    assert "64 + 192 tokens on average: 10 fit in 2,048" in load.fixes[0].effect
    assert load.fixes[0].effect.endswith("8 if all end at once")


def test_a_pool_is_sized_for_the_slots() -> None:
    """Sixteen may run, though eight do just now: 16 times 10 MiB, over 92.5 %, is 173 MiB."""
    load = explain_load(own_page(8, 0, 0.8) + "nanoserve:max_num_seqs 16\n")

    assert load is not None
    assert load.fixes[-1].change == "--kv-cache-bytes 173MiB"
    assert "16 may run at once" in load.fixes[-1].effect


def test_eight_bits_of_llama_cpp_hold_less_than_twice_as_much() -> None:
    """Its q8_0 has 8.5 bits: 98 % of a pool become 52 %, not 49."""
    text = (
        "llamacpp:kv_cache_usage_ratio 0.98\nllamacpp:requests_processing 4\n"
        "llamacpp:requests_deferred 7\n"
    )
    load = explain_load(text)

    assert load is not None
    assert load.fixes[0].change == "--cache-type-k q8_0 --cache-type-v q8_0"
    assert "1.88 times as much" in load.fixes[0].effect
    assert "52% of it" in load.fixes[0].effect
