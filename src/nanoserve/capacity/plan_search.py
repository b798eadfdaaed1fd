"""The planner's questions the other way round: what is the most, the least, the best that serves.

The longest context, the fewest GPUs, the best precision, the most users. Each candidate is
planned; nothing is extrapolated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from nanoserve.capacity.gpu_counts import gpu_counts, gpu_words, spread_over
from nanoserve.capacity.launch_command import launch_command
from nanoserve.capacity.own_formats import OWN_WEIGHTS
from nanoserve.capacity.own_slots import served_at_once, with_slots_for
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.remedies import coarser_format, coarser_weights
from nanoserve.capacity.workload import Workload
from nanoserve.errors import OptionError
from nanoserve.units import ceil_div

Wanted = Literal["max-len", "gpus", "precision", "users"]

MAX_USERS = 1 << 20
_MOST_GPUS = 1024
_MOST_TP = 64
_SHORTEST = 2  # tokens of a request: one of a prompt, one of an output


@dataclass(frozen=True, slots=True)
class Found:
    """One candidate that was planned.

    Attributes:
        words: The candidate, as flags of the planner.
        figure: The figure that was looked for or compared: tokens, GPUs or users.
        plan: With the candidate.
        is_enough: Whether it serves the users that were asked for.
    """

    words: str
    figure: int
    plan: PlanAnswer
    is_enough: bool


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """What was looked for, and every candidate on the way.

    Attributes:
        wanted: What was looked for.
        users: Users that had to be served.
        candidates: In the order tried; the last one is the answer, if there is one.
    """

    wanted: Wanted
    users: int
    candidates: tuple[Found, ...]

    @property
    def best(self) -> Found | None:
        """The answer; None where no candidate is enough."""
        last = self.candidates[-1] if self.candidates else None
        return last if last is not None and last.is_enough else None

    @property
    def slots(self) -> int:
        """Requests at once that the command has each copy admit; 0 where nothing was found.

        As many as the answer's row counts: never more, and fewer only where the pool was planned
        for fewer rows, or where the length was looked for and every user more would shorten it.
        """
        if self.best is None:
            return 0
        plan = self.best.plan
        if self.wanted == "max-len":
            return ceil_div(self.users, plan.query.num_replicas)
        return min(served_at_once(plan), plan.choices.max_num_seqs)

    @property
    def command(self) -> str | None:
        """What starts the engine for these users; None where nothing was found."""
        if self.best is None:
            return None
        plan = self.best.plan
        return launch_command(plan.query, plan.choices, plan.max_model_len, self.slots)


def find(plan: PlanAnswer, wanted: str, users: int) -> SearchAnswer:
    """Look for one figure, everything else as in the plan.

    Args:
        plan: What was asked.
        wanted: `max-len`, `gpus`, `precision` or `users`.
        users: Requests of the workload at once that have to fit; of `max-len`, requests of
            that very length.

    Raises:
        OptionError: There is no such figure to look for, or no such number of users.
    """
    if wanted not in get_args(Wanted):
        message = f"--find is {wanted[:40]!r}; it must be one of {', '.join(get_args(Wanted))}."
        raise OptionError(message)
    if not 1 <= users <= MAX_USERS:
        message = f"--users is {users:,}; it must be from 1 to {MAX_USERS:,}."
        raise OptionError(message)
    search: dict[str, Callable[[PlanAnswer, int], Iterator[Found]]] = {
        "max-len": _longest,
        "gpus": _fewest_gpus,
        "precision": _best_precision,
        "users": _most_users,
    }
    candidates = []
    for candidate in search[wanted](plan, users):
        candidates.append(candidate)
        if candidate.is_enough:
            break
    return SearchAnswer(wanted, users, tuple(candidates))  # type: ignore[arg-type]


def served_users(plan: PlanAnswer) -> int:
    """Return the requests of the workload that run at once, all replicas together.

    Counted with the least pool that is likely: who asks for N users wants N.
    """
    return plan.query.num_replicas * served_at_once(plan)


def _longest(plan: PlanAnswer, users: int) -> Iterator[Found]:
    """The longest length of which so many requests fit at once, from a prompt and an output on."""
    most = plan.query.model.shape.max_position_embeddings or plan.choices.longest
    rows = ceil_div(users, plan.query.num_replicas)
    if plan.query.max_num_seqs is None and rows > plan.choices.max_num_seqs:
        slots = min(rows, plan.query.most_slots)
        plan = answer(replace(plan.query, max_num_seqs=slots))
    low, high = _SHORTEST - 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if served_users(_with_length(plan, middle)) >= users:
            low = middle
        else:
            high = middle - 1
    length = max(_SHORTEST, low)
    is_enough = low >= _SHORTEST
    figure = length if is_enough else 0
    yield Found(f"--max-model-len {length}", figure, _with_length(plan, length), is_enough)


def _with_length(plan: PlanAnswer, tokens: int) -> PlanAnswer:
    workload = Workload(tokens, tokens, tokens, max(1, tokens // 2), f"{tokens:,} tokens")
    return answer(replace(plan.query, max_model_len=tokens, workload=workload))


def _fewest_gpus(plan: PlanAnswer, users: int) -> Iterator[Found]:
    """Every number of ranks, once and in as many copies as are needed; the fewest GPUs first."""
    query, best = plan.query, dict[int, PlanAnswer]()
    for count in gpu_counts(query, _MOST_TP):
        one = with_slots_for(answer(spread_over(query, count)), users)
        served = served_users(one)
        copies = ceil_div(users, served) if served else 1
        for num_gpus in {one.query.num_gpus, copies * one.query.num_gpus}:
            if num_gpus > _MOST_GPUS:
                continue
            copied = _with_rows_for(answer(replace(one.query, num_gpus=num_gpus)), users)
            best[num_gpus] = max(best.get(num_gpus, copied), copied, key=_usefulness)
    for num_gpus, found in sorted(best.items()):
        yield Found(gpu_words(found.query), num_gpus, found, served_users(found) >= users)


def _usefulness(plan: PlanAnswer) -> tuple[int, int]:
    return served_users(plan), plan.pool.mid


def _best_precision(plan: PlanAnswer, users: int) -> Iterator[Found]:
    """The checkpoint's own format, then coarser ones."""
    stored = plan.choices.weight_format.name
    if plan.query.profile.engine == "nanoserve" and stored not in OWN_WEIGHTS:
        stored = "none"
    yield _of_precision(plan, stored, users)
    for name in coarser_weights(plan):
        changed = answer(replace(plan.query, weight_format=coarser_format(plan.query, name)))
        yield _of_precision(changed, name, users)


def _of_precision(plan: PlanAnswer, name: str, users: int) -> Found:
    sized = _with_rows_for(with_slots_for(plan, users), users)
    enough = served_users(sized)
    return Found(f"--quantization {name}", enough, sized, enough >= users)


def _most_users(plan: PlanAnswer, users: int) -> Iterator[Found]:
    plan = with_slots_for(plan)
    plan = _with_rows_for(plan, served_users(plan))
    most, slots = served_users(plan), max(1, served_at_once(plan))
    yield Found(f"--max-num-seqs {slots}", most, plan, most >= users)


def _with_rows_for(plan: PlanAnswer, users: int) -> PlanAnswer:
    """Return the plan of an engine that is told more slots, where its default is too few.

    A step with more rows takes more, so it is planned anew. Where the pool bounds the users, or
    slots that were stated do, the plan comes back as it is.
    """
    rows = ceil_div(users, plan.query.num_replicas)
    if rows <= plan.choices.max_num_seqs or served_users(plan) < users:
        return plan
    return answer(replace(plan.query, max_num_seqs=rows))
