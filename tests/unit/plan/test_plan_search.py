"""`plan_search`: the figure found is enough, and the next one is not."""

import pytest

from nanoserve.errors import OptionError
from nanoserve.plan.compare_table import search_lines
from nanoserve.plan.plan_answer import PlanAnswer, answer
from nanoserve.plan.plan_json import search_as_dict
from nanoserve.plan.plan_query import PlanQuery
from nanoserve.plan.plan_search import find, served_users
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
