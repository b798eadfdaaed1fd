"""What a start-up log says of a boot, whichever engine wrote it. Knows no log's wording.

Every figure may be missing: logs are cut, and engines leave things out. Figures are one
GPU's; where ranks differ, the one that decides (least free, smallest pool, most weights).
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

ErrorKind = Literal[
    "out of memory",  # an allocation failed; `stage` says during what
    "request larger than pool",
    "no room for pool",
    "free memory below utilization",
    "memory changed while measuring",
    "too many requests for state",
    "unsupported",
    "option",
    "driver",  # no device, or one that this build of the engine cannot use
    "model not found",
    "port in use",
    "host memory",  # the machine's own memory ran out, not the card's
    "other error",
    "unclear",  # something stopped it, and nothing says what
]
Stage = Literal["start", "weights", "profile", "pool", "capture", "serving"]


@dataclass(frozen=True, slots=True)
class LoggedError:
    """What stopped a boot.

    Attributes:
        kind: What went wrong.
        text: The line that says so, shortened.
        stage: What was being done.
        need_bytes: What was asked for; None where nobody says.
        have_bytes: What there was.
        need_tokens: The same in tokens, for engines that compare those.
        have_tokens: The same in tokens.
        fitting_len: The longest length that the engine itself would have served.
        fitting_seqs: The most requests at once that it would have taken.
        others_bytes: What other processes held of the device.
        advice: Flags that the engine itself planned again with; nanoserve's refusals have them.
        position: Where in the plain log it stands.
    """

    kind: ErrorKind
    text: str
    stage: Stage | None = None
    need_bytes: int | None = None
    have_bytes: int | None = None
    need_tokens: int | None = None
    have_tokens: int | None = None
    fitting_len: int | None = None
    fitting_seqs: int | None = None
    others_bytes: int | None = None
    advice: tuple[str, ...] = ()
    position: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBoot:
    """One boot as its log tells it.

    Attributes:
        engine: `vllm`, `sglang`, `tensorrt-llm`, `llama.cpp` or `nanoserve`; None if unknown.
        version: As printed.
        model: As printed.
        total_bytes: All memory of the device.
        free_bytes: What was free when the engine started.
        loaded_free_bytes: What was free once the weights were loaded.
        left_bytes: What was free once the boot was done.
        utilization: Share of the total (SGLang: of what was free) that the engine may hold.
        budget_bytes: The bytes that share comes to, where the log multiplies it out.
        reserve_bytes: What is kept free, where the log says so itself.
        own_bytes: What the process held before it loaded anything.
        others_bytes: What other processes hold.
        weight_bytes: The weights.
        consumed_bytes: Weights and what is held outside the allocator, where logged as one.
        activation_bytes: The profiled step's peak.
        non_torch_bytes: Held outside the allocator: driver context, communication.
        graph_bytes: What recorded steps took.
        graph_estimate_bytes: What they were estimated to take before.
        is_graph_estimate_in_budget: Whether the estimate was taken off before the pool was
            sized; None where the log does not say.
        pool_bytes: The KV pool; negative where the parts before it exceeded the budget.
        num_blocks: Blocks of the pool.
        block_size: Tokens of a block.
        pool_tokens: Tokens that the pool holds, as the engine counts them.
        max_concurrency: Requests of `max_model_len` that fit, as the engine counts them.
        max_model_len: Longest request served.
        max_num_seqs: Most requests at once.
        max_num_batched_tokens: Token budget of a step.
        micro_batch_tokens: Rows of one pass of llama.cpp, its `n_ubatch`.
        tensor_parallel: GPUs that share each layer.
        num_devices: GPUs that a summed figure is of; llama.cpp's are sums.
        num_layers: Layers of the model, as llama.cpp counts them.
        num_device_layers: How many of them lie on GPUs.
        kv_cache_dtype: As printed.
        is_eager: Whether nothing is recorded; None where the log does not say.
        is_ready: Whether the server said that it serves.
        error: What stopped it; None where the log shows nothing of the kind.
        num_preemptions: Most preemptions that a line of the log counted.
        positions: Where in the plain log each figure stands, by its field's name.
    """

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    loaded_free_bytes: int | None = None
    left_bytes: int | None = None
    utilization: float | None = None
    budget_bytes: int | None = None
    reserve_bytes: int | None = None
    own_bytes: int | None = None
    others_bytes: int | None = None
    weight_bytes: int | None = None
    consumed_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graph_bytes: int | None = None
    graph_estimate_bytes: int | None = None
    is_graph_estimate_in_budget: bool | None = None
    pool_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    pool_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    micro_batch_tokens: int | None = None
    tensor_parallel: int | None = None
    num_devices: int | None = None
    num_layers: int | None = None
    num_device_layers: int | None = None
    kv_cache_dtype: str | None = None
    is_eager: bool | None = None
    is_ready: bool = False
    error: LoggedError | None = None
    num_preemptions: int | None = None
    positions: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether the text held no figure and no error."""
        return all(
            getattr(self, one.name) in (None, False)
            for one in fields(self)
            if one.name not in ("engine", "positions")
        )

    @property
    def tokens(self) -> int | None:
        """Tokens of the pool, from its blocks where the engine did not count them."""
        if self.pool_tokens is not None:
            return self.pool_tokens
        if self.num_blocks is None:
            return None
        return self.num_blocks * (self.block_size or DEFAULT_BLOCK_SIZE)

    @property
    def requested_bytes(self) -> int | None:
        """What the engine may hold: as logged, or utilization of the total."""
        if self.budget_bytes is not None or self.utilization is None or self.total_bytes is None:
            return self.budget_bytes
        return int(self.utilization * self.total_bytes)


DEFAULT_BLOCK_SIZE = 16  # vLLM's and nanoserve's, where a log does not say


@dataclass(slots=True)
class Findings:
    """Figures gathered while a log is read; several ranks print the same line.

    Owned by one reader; `put` keeps the figure that decides.
    """

    values: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)

    def put(
        self,
        name: str,
        value: int | float | str | bool | None,
        keep: str = "last",
        position: int | None = None,
    ) -> None:
        """Store a figure.

        Args:
            name: A field of `LoggedBoot`.
            value: None is ignored, and a size of 0 or less where there is no such thing.
            keep: Which of several stays: `first`, `last`, `min` or `max`.
            position: Where in the text it stands.
        """
        if value is None or (name in _POSITIVE and not float(value) > 0):
            return
        old = self.values.get(name)
        if old is None or keep == "last" or (keep in _BETTER and _BETTER[keep](value, old)):
            self.values[name] = value
            if position is not None:
                self.positions[name] = position

    def complete(self, boot: LoggedBoot) -> LoggedBoot:
        """Return the boot with every figure found."""
        return replace(boot, positions=self.positions, **self.values)


_POSITIVE = frozenset(  # of these no boot has 0; a pool may have none, or less than that
    {
        "total_bytes",
        "budget_bytes",
        "weight_bytes",
        "block_size",
        "max_concurrency",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "micro_batch_tokens",
        "tensor_parallel",
        "num_devices",
        "num_layers",
    }
)
_BETTER = {"min": operator.lt, "max": operator.gt}
