"""`answer`: a query in, everything the planner says of it out. Pure; no text but notes.

Composes `stage_budget` (what is left for the pool), `pool_capacity` (what that holds) and
`speed_bounds`. Rendering is `plan_table`, formulas one by one `plan_formulas`, flags for
the engine `launch_command`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanoserve.capacity.budget_line import BudgetLine, StageBudget
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.launch_command import command_notes, launch_command
from nanoserve.capacity.plan_choices import PlanChoices, cached_shape, choose_plan
from nanoserve.capacity.plan_notes import plan_notes
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.plan_verdict import Verdict, judge
from nanoserve.capacity.pool_capacity import (
    LEAST_LENGTH,
    WorkloadFit,
    binding,
    concurrency,
    longest_fit,
    tokens,
    workload_fit,
)
from nanoserve.capacity.rank_weights import RankWeights, rank_weights
from nanoserve.capacity.speed_bounds import DecodeFloor, PrefillBound, decode_floor, prefill_bound
from nanoserve.capacity.stage_budget import stage_budget, utilization_of
from nanoserve.plan.kv_layout import (
    full_bytes_per_token,
    growing_bytes_per_token,
    state_bytes_per_request,
)
from nanoserve.spec.param_count import count_active_parameters, count_parameters

_LEAST_SHARE = 0.5  # of a model's bytes that its files hold, whatever a format's average is off by


@dataclass(frozen=True, slots=True)
class KvFacts:
    """What requests cost on one GPU of the deciding stage, layer sums without any padding.

    Attributes:
        token_bytes: Of each further token in the layers that keep all.
        window_bytes: Of each token in the layers that keep a window or chunk.
        state_bytes: Of a request's states.
    """

    token_bytes: int
    window_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """Everything the planner says.

    Attributes:
        query: What was asked.
        choices: What it was resolved to.
        stages: Each pipeline stage's GPU.
        binding: Number of the stage that holds the fewest tokens.
        verdict: Whether it loads and serves.
        reason: Why, in a sentence with numbers.
        max_model_len: Longest request that it is planned with.
        longest_fit: Longest request that fits at all; 0 where none does.
        tokens: Tokens of the pool, as the engine would log them.
        concurrency: Requests of the longest length at once, likely figure.
        fit: Requests of the workload at once.
        decode: Floors of a decode step: of one request, and of the recommended batch.
        prefill: Bound on the workload's mean prompt.
        num_params: Parameters of the model.
        num_active_params: Those that one token visits.
        notes: What the asker should know.
    """

    query: PlanQuery
    choices: PlanChoices
    stages: tuple[StageBudget, ...]
    binding: int
    verdict: Verdict
    reason: str
    max_model_len: int
    longest_fit: int
    tokens: Interval
    concurrency: float
    fit: WorkloadFit
    decode: tuple[DecodeFloor, ...]
    prefill: PrefillBound
    num_params: int
    num_active_params: int
    notes: tuple[str, ...]

    @property
    def stage(self) -> StageBudget:
        """The stage that decides."""
        return self.stages[self.binding]

    @property
    def lines(self) -> tuple[BudgetLine, ...]:
        """The parts of the deciding GPU, in the order subtracted."""
        return self.stage.lines

    @property
    def pool(self) -> Interval:
        """The pool of the deciding GPU."""
        return self.stage.pool

    @property
    def weight_bytes(self) -> int:
        """Weights on the deciding GPU."""
        return self.stage.weights.weight_bytes.mid

    @property
    def fits(self) -> bool:
        """Whether it serves: exit code 0, else 4."""
        return self.verdict == "serves"

    @property
    def utilization(self) -> float:
        """The share of memory that the engine is given."""
        return utilization_of(self.query)

    @property
    def has_pool(self) -> bool:
        """Whether anything is left for requests; else no figure of them or of speed means anything."""
        return self.pool.mid > 0

    @property
    def can_start(self) -> bool:
        """Whether the engine starts: it refuses a pool that cannot hold its longest request."""
        starts = self.stage.cost.is_free or self.concurrency >= 1
        return self.has_pool and starts and not self.stage.refusal

    @property
    def command(self) -> str | None:
        """What starts the engine as planned; None where it would not start."""
        if not self.can_start:
            return None
        return launch_command(self.query, self.choices, self.max_model_len, self.fit.max_num_seqs)

    @property
    def kv_facts(self) -> KvFacts:
        """What requests cost on one GPU of the deciding stage."""
        shape, cache = cached_shape(self.query, self.stage.shape), self.choices.cache
        token_bytes = growing_bytes_per_token(shape, cache)
        return KvFacts(
            token_bytes,
            full_bytes_per_token(shape, cache) - token_bytes,
            state_bytes_per_request(shape, cache),
        )


def answer(query: PlanQuery) -> PlanAnswer:
    """Plan a query.

    Raises:
        OptionError: The ranks do not divide the model, or a format is unknown.
    """
    choices = choose_plan(query)
    stages = tuple(
        stage_budget(query, choices, weights) for weights in _stored_weights(query, choices)
    )
    longest = longest_fit(stages, choices.longest)
    max_model_len = _served_length(query, choices, longest)
    if stages[0].refusal and max_model_len < choices.longest:  # a boot was refused for its length
        return _planned_shorter(query, choices, max_model_len)
    deciding = binding(stages, max_model_len)
    fit = workload_fit(stages, choices)
    verdict, reason = judge(choices, stages, stages[deciding], max_model_len, fit)
    context = choices.workload.mean
    batches = dict.fromkeys((1, fit.max_num_seqs))
    return PlanAnswer(
        query=query,
        choices=choices,
        stages=stages,
        binding=deciding,
        verdict=verdict,
        reason=reason,
        max_model_len=max_model_len,
        longest_fit=longest,
        tokens=tokens(stages[deciding], max_model_len),
        concurrency=concurrency(stages, max_model_len),
        fit=fit,
        decode=tuple(decode_floor(query, choices, stages, batch, context) for batch in batches),
        prefill=prefill_bound(query, choices, choices.workload.mean_prompt),
        num_params=count_parameters(query.model.shape).total,
        num_active_params=count_active_parameters(query.model.shape).total,
        notes=_notes(query, choices, stages, stages[deciding], max_model_len),
    )


def _planned_shorter(query: PlanQuery, choices: PlanChoices, max_model_len: int) -> PlanAnswer:
    shorter = answer(replace(query, max_model_len=max_model_len))
    note = (
        f"one request of {choices.longest:,} tokens, the server's default, does not fit: planned "
        f"with {max_model_len:,}"
    )
    return replace(shorter, notes=(note, *shorter.notes))


def _stored_weights(query: PlanQuery, choices: PlanChoices) -> tuple[RankWeights, ...]:
    shape, stored = query.model.shape, choices.weight_format
    parts = None
    if query.splits_layers:
        from nanoserve.capacity.layer_split import split_layers  # other engines do without

        parts = split_layers(shape, choices.pp, on_host=query.gpu.is_host)
    file_bytes = _file_bytes(query, choices)
    counted = rank_weights(shape, stored, choices.pp, choices.tp, file_bytes, parts)
    if query.profile.engine != "nanoserve":
        return counted
    from nanoserve.capacity.own_budget import own_weights  # other engines do without

    return (own_weights(query, choices, counted[0]),)


def _notes(
    query: PlanQuery,
    choices: PlanChoices,
    stages: Sequence[StageBudget],
    deciding: StageBudget,
    max_model_len: int,
) -> tuple[str, ...]:
    notes = plan_notes(
        query,
        choices,
        max_model_len,
        longest_may_fit=concurrency(stages, choices.longest) >= 1,
        is_length_sure=deciding.cost.is_free
        or deciding.cost.concurrency(deciding.pool.low, max_model_len).value >= 1,
    )
    if _held_bytes(query) is not None and _file_bytes(query, choices) is None:
        message = (
            f"the files hold {query.model.file_bytes:,} bytes, less than half of what the config "
            "describes: the config is planned; is the download whole?"
        )
        notes = (*notes, message)
    return (*choices.notes, *notes, *command_notes(query))


def _held_bytes(query: PlanQuery) -> int | None:
    """Return the bytes of the files where they are what is held; our own server widens them."""
    is_held = query.weight_format is None and query.profile.engine != "nanoserve"
    return query.model.file_bytes if is_held else None


def _file_bytes(query: PlanQuery, choices: PlanChoices) -> int | None:
    """Return the bytes of the files; None of files that cannot be the whole model."""
    held = _held_bytes(query)
    if held is None:
        return None
    (whole,) = rank_weights(query.model.shape, choices.weight_format, 1, 1, None)
    return held if held >= _LEAST_SHARE * whole.weight_bytes.low else None


def _served_length(query: PlanQuery, choices: PlanChoices, longest_fit: int) -> int:
    """Return the length asked for, else the longest that fits, in whole 1,024s.

    Where not even those fit it is the model's own, and the plan says that it does not serve.
    """
    if query.max_model_len is not None or longest_fit >= choices.longest:
        return choices.longest
    return longest_fit // LEAST_LENGTH * LEAST_LENGTH or choices.longest
