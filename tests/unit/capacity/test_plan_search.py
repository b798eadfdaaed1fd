"""`plan_search`: the figure found is enough, and the next one is not."""

from dataclasses import replace

import pytest

from nanoserve.capacity.compare_table import search_lines
from nanoserve.capacity.own_slots import with_slots_for
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_json import search_as_dict
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.plan_search import MAX_USERS, find, served_users
from nanoserve.capacity.workload import Workload
from nanoserve.errors import OptionError
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.read_model import read_planned_model


def planned(model: str, gpu: str, num_gpus: int = 1) -> PlanAnswer:
    query = PlanQuery(model=read_planned_model(model), gpu=find_gpu(gpu), num_gpus=num_gpus)
    return answer(query)


def test_the_longest_length_is_the_longest() -> None:
    """Ten requests of that length fit in the least pool that is likely, and no longer ones."""
    plan = planned("llama-3.1-70b", "h100", 4)
    search = find(plan, "max-len", 10)

    assert search.best is not None
    length = search.best.figure
    stage = search.best.plan.stage
    pool = stage.pool.low
    assert stage.cost.requests(pool, length).value >= 10
    assert stage.cost.requests(pool, length + 16).value < 10
    assert "--max-num-seqs 10" in (search.command or "")


def test_more_users_get_shorter_requests() -> None:
    """The length falls as the users rise."""
    plan = planned("llama-3.1-8b", "h100")
    lengths = [find(plan, "max-len", users).candidates[-1].figure for users in (1, 4, 16, 64)]

    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == len(lengths)


def test_the_fewest_gpus_are_the_fewest() -> None:
    """Every smaller number was planned and is not enough."""
    search = find(planned("llama-3.1-70b", "h100"), "gpus", 100)

    assert search.best is not None
    assert search.best.figure == 8
    assert [one.figure for one in search.candidates] == [1, 2, 4, 8]
    assert [served_users(one.plan) >= 100 for one in search.candidates] == [False] * 3 + [True]


def test_replicas_count_together() -> None:
    """Small models are served by copies rather than by ranks of one."""
    search = find(planned("llama-3.1-8b", "h100"), "gpus", 500)

    assert search.best is not None
    plan = search.best.plan
    assert served_users(plan) == plan.query.num_replicas * plan.fit.p95.low >= 500


def test_the_best_precision_has_the_most_bits_that_serve() -> None:
    """In 16 bits 2 of 4 users fit, in 8 bits they all do: 4 bits are not looked at."""
    search = find(planned("llama-3.1-70b", "h100", 2), "precision", 4)

    assert search.best is not None
    assert search.best.plan.choices.weight_format.name == "fp8"
    assert len(search.candidates) == 2


def test_users_are_what_the_pool_surely_holds() -> None:
    """As many as fit in the least pool that is likely."""
    plan = planned("llama-3.1-8b", "h100")
    search = find(plan, "users", 1)

    assert search.best is not None
    assert search.best.figure == plan.fit.p95.low


def test_the_slots_of_the_command_are_the_users_that_were_found() -> None:
    """No command admits more than were counted, or fewer than it says run at once."""
    few = find(planned("llama-3.1-8b", "rtx 4090"), "users", 1)
    told = replace(planned("qwen3-0.6b", "h200").query, max_num_seqs=16)
    stated = find(answer(told), "users", 1)
    for search in (few, find(planned("llama-3.1-8b", "b200"), "users", 1), stated):
        assert search.best is not None
        assert search.best.words == f"--max-num-seqs {search.best.figure}"
        assert f"--max-num-seqs {search.best.figure}" in (search.command or "")
    assert stated.candidates[-1].figure == 16


def test_more_users_than_default_slots_are_planned_with_their_rows() -> None:
    """Falcon-7B on a 4090 holds more than vLLM's 256 slots: a step with more rows takes more."""
    plan = planned("falcon-7b", "rtx 4090")
    for wanted in ("users", "precision", "gpus"):
        best = find(plan, wanted, 400).best
        assert best is not None
        assert best.plan.choices.max_num_seqs >= 400 > plan.choices.max_num_seqs
        assert best.plan.pool.low < plan.pool.low


@pytest.mark.parametrize("wanted", ["gpus", "precision"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "nanoserve"])
def test_no_command_admits_more_than_its_row_counts(wanted: str, engine: str) -> None:
    """As many, or fewer with a line that says so."""
    query = PlanQuery(model=read_planned_model("llama-3.1-8b"), gpu=find_gpu("h100"), engine=engine)
    search = find(answer(query), wanted, 4)

    assert search.best is not None
    fit = served_users(search.best.plan)
    admitted = search.slots * search.best.plan.query.num_replicas
    has_note = any(line.startswith(f"note: {fit:,} users fit") for line in search_lines(search))
    assert 4 <= admitted <= fit
    assert has_note == (admitted < fit)


def test_the_slots_for_the_fewest_gpus_are_the_users_of_the_row() -> None:
    """The likely pool would hold more than the least one that is counted."""
    search = find(planned("llama-3.1-70b", "h100"), "gpus", 100)

    assert search.best is not None
    fit = served_users(search.best.plan)
    assert search.best.plan.fit.max_num_seqs > fit
    assert f"--max-num-seqs {fit}" in (search.command or "")


def test_copies_share_the_users_of_the_longest_length() -> None:
    """Of two copies each admits half, and the length is that of half on one."""
    query = replace(planned("llama-3.1-8b", "h100", 2).query, tp=1)
    search = find(answer(query), "max-len", 20)
    one = find(planned("llama-3.1-8b", "h100"), "max-len", 10)

    assert search.best is not None
    assert one.best is not None
    assert search.best.figure == one.best.figure
    assert "--max-num-seqs 10" in (search.command or "")


def test_what_cannot_be_had_says_how_far_one_gets() -> None:
    """No number of bits serves a million users; the most that was seen is printed."""
    search = find(planned("llama-3.1-8b", "h100"), "precision", 1_000_000)

    assert search.best is None
    assert search.command is None
    most = max(served_users(one.plan) for one in search.candidates)
    assert search_lines(search)[-1].endswith(f"the most is {most:,}")
    assert search_as_dict(search)["found"] is None


@pytest.mark.parametrize(
    ("wanted", "users"), [("speed", 1), ("", 1), ("gpus", 0), ("gpus", 1 << 21)]
)
def test_impossible_searches_are_refused(wanted: str, users: int) -> None:
    """What is looked for, and for how many, is checked."""
    with pytest.raises(OptionError, match=r"--find is|--users is"):
        find(planned("llama-3.1-8b", "h100"), wanted, users)


@pytest.mark.parametrize("engine", ["vllm", "nanoserve"])
def test_no_length_at_all_is_an_answer(engine: str) -> None:
    """Where the weights do not fit nothing is found, and no impossible length is planned."""
    asked = PlanQuery(
        model=read_planned_model("llama-3.1-8b"),
        gpu=find_gpu("rtx 4060"),
        num_gpus=1,
        engine=engine,
    )
    search = find(answer(asked), "max-len", 1)

    assert search.best is None
    assert [one.figure for one in search.candidates] == [0]


def test_the_fewest_gpus_need_not_be_a_power_of_two() -> None:
    """Three copies of one GPU each serve three times the users, and a user more takes another."""
    plan = planned("llama-3.1-8b", "h100")
    each = served_users(plan)
    search = find(plan, "gpus", 3 * each)
    more = find(plan, "gpus", each + 1)

    assert search.best is not None
    assert more.best is not None
    assert search.best.figure <= 3
    assert more.best.figure == 2
    numbers = [one.figure for one in search.candidates]
    assert numbers == sorted(set(numbers))
    assert not any(one.is_enough for one in search.candidates[:-1])


def test_enough_is_said_of_the_users_asked_for() -> None:
    """One user on two cards is enough for who asked for one, though no plan calls it serving."""
    lines = search_lines(find(planned("llama-3.1-70b", "h100", 2), "max-len", 1))
    few = search_lines(find(planned("llama-3.1-70b", "h100", 2), "users", 30))

    assert not any("cannot serve" in line for line in (*lines, *few))
    assert any(line.endswith("too few") for line in few)


def test_our_own_server_is_searched_without_ranks_or_formats() -> None:
    """What it would refuse is no candidate: copies with as many slots as each has room for are."""
    query = PlanQuery(model=read_planned_model("qwen3-8b"), gpu=find_gpu("h100"),
                      engine="nanoserve")  # fmt: skip
    plan = answer(query)
    each = served_users(with_slots_for(plan))

    gpus = find(plan, "gpus", 3 * each).best
    assert gpus is not None
    assert (gpus.figure, gpus.plan.choices.tp) == (3, 1)
    assert len(find(plan, "precision", 1 << 20).candidates) == 1


def test_a_length_that_nothing_leaves_room_for_is_none() -> None:
    """72 B on one card: no length is found, and none is refused that nobody asked for."""
    query = PlanQuery(model=read_planned_model("qwen2.5-72b"), gpu=find_gpu("h200"),
                      engine="nanoserve")  # fmt: skip
    search = find(answer(query), "max-len", 1)

    assert search.best is None
    assert search.candidates[-1].figure == 0


def small_steps(budget: int, tokens: int) -> PlanAnswer:
    """Plan steps of so many tokens, for requests of which far more fit into the pool."""
    workload = Workload(tokens, tokens, tokens, tokens // 2, f"{tokens} tokens")
    return answer(
        PlanQuery(
            model=read_planned_model("qwen3-0.6b"),
            gpu=find_gpu("h200"),
            workload=workload,
            max_num_batched_tokens=budget,
        )
    )


@pytest.mark.parametrize("wanted", ["users", "precision", "max-len"])
def test_vllm_is_told_no_more_slots_than_a_step_has_tokens(wanted: str) -> None:
    """It refuses more: 512 are served, and 600 are not."""
    assert find(small_steps(512, 1024), wanted, 512).best is not None

    search = find(small_steps(512, 1024), wanted, 600)

    assert search.best is None
    assert {served_users(one.plan) for one in search.candidates} == {512}


def test_copies_serve_more_users_than_a_step_has_tokens() -> None:
    """Each of them is told no more slots than its own steps have."""
    search = find(small_steps(512, 1024), "gpus", 600)

    assert search.best is not None
    assert search.best.figure == 2


def test_as_many_users_are_found_as_a_step_has_tokens() -> None:
    """The command is one that vLLM starts."""
    search = find(small_steps(512, 1024), "users", 1)

    assert search.best is not None
    assert search.best.figure == 512
    assert "--max-num-seqs 512" in (search.command or "")


def test_no_more_users_are_found_than_can_be_asked_for() -> None:
    """Millions of requests of two tokens fit."""
    gpu = replace(find_gpu("h200"), memory_bytes=1 << 50)
    query = replace(small_steps(8192, 2).query, gpu=gpu, max_num_batched_tokens=None)
    search = find(answer(query), "users", 1)

    assert search.best is not None
    assert search.best.figure == MAX_USERS
