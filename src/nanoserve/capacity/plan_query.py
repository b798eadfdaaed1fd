"""`PlanQuery`: one question to the planner, checked once.

Owns what may be asked. What follows from it (defaults, ranks, formats) is `plan_choices`; the
answer is `plan_answer`. To ask a variant, `dataclasses.replace` a query: it is checked again.
"""

from dataclasses import dataclass

from nanoserve.capacity.engine_profile import EngineProfile, find_profile, version_numbers
from nanoserve.capacity.workload import Workload
from nanoserve.errors import OptionError
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.planned_model import PlannedModel
from nanoserve.spec.quant_spec import WeightFormat
from nanoserve.units import GIB

DEFAULT_ENGINE = "vllm"
HOST_ENGINES = ("nanoserve", "llama.cpp")  # that are planned in a machine's own memory
MAX_GPUS = 4096
_MAX_TOKENS = 1 << 31
_MAX_SEQS = 1 << 20
_MIN_MEMORY_BYTES = GIB // 4
_MAX_MEMORY_BYTES = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuery:
    """What is asked. None leaves a choice to the engine's defaults and to what fits.

    Attributes:
        model: What is to be served.
        gpu: Each GPU; overrides of memory, bandwidth and rates are already in it.
        num_gpus: How many there are.
        engine: `vllm`, `vllm@0.21`, `sglang`, `tensorrt-llm`, `llama.cpp` or `nanoserve`.
        weight_format: How weights are stored; None as the checkpoint has them.
        kv_cache_dtype: An engine's spelling; `auto` is the checkpoint's, else the model's.
        tp: GPUs that share each layer; None for all of them.
        pp: Pipeline stages.
        max_model_len: Longest request; None for the model's longest, or what fits.
        max_num_seqs: Requests at once.
        max_num_batched_tokens: Token budget of a step.
        utilization: Share of the GPU's memory; None for the engine's default.
        is_eager: Whether no step is recorded.
        workload: Lengths of the requests; None for 8,192 tokens.
    """

    model: PlannedModel
    gpu: GpuSpec
    num_gpus: int = 1
    engine: str = DEFAULT_ENGINE
    weight_format: WeightFormat | None = None
    kv_cache_dtype: str = "auto"
    tp: int | None = None
    pp: int = 1
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    utilization: float | None = None
    is_eager: bool = False
    workload: Workload | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be planned.

        Raises:
            OptionError: Names the flag, its value and what is allowed.
        """
        find_profile(self.engine)
        for flag, value, most in (
            ("--tp", self.tp, MAX_GPUS),
            ("--pp", self.pp, MAX_GPUS),
            ("--num-gpus", self.num_gpus, MAX_GPUS),
            ("--max-model-len", self.max_model_len, _MAX_TOKENS),
            ("--max-num-seqs", self.max_num_seqs, _MAX_SEQS),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, _MAX_TOKENS),
        ):
            _check_count(flag, value, most)
        _check_budget(self)
        share = self.utilization
        if share is not None and not 0.0 < share <= 1.0:
            message = f"--gpu-memory-utilization is {share}; it must be above 0 and at most 1."
            raise OptionError(message)
        _check_memory(self.gpu)
        _check_device(self)
        _check_ranks(self)

    @property
    def profile(self) -> EngineProfile:
        """How the engine accounts for memory."""
        return find_profile(self.engine)

    @property
    def version(self) -> tuple[int, ...] | None:
        """The engine's version as numbers; None for the newest known."""
        text = self.engine.partition("@")[2].strip()
        return version_numbers(text) if text else None

    @property
    def most_slots(self) -> int:
        """Requests at once that can be asked for; vLLM refuses more than a step has tokens."""
        budget = self.max_num_batched_tokens
        if self.profile.engine != "vllm" or budget is None:
            return _MAX_SEQS
        return min(budget, _MAX_SEQS)

    @property
    def splits_layers(self) -> bool:
        """Whether GPUs get whole layers rather than a share of each."""
        return self.profile.engine == "llama.cpp"

    @property
    def ranks(self) -> int:
        """GPUs that share each layer."""
        if self.tp is not None:
            return self.tp
        return 1 if self.splits_layers else self.num_gpus // self.pp

    @property
    def num_stages(self) -> int:
        """GPUs, or groups of them, that hold a part of the layers each."""
        takes_all = self.splits_layers and self.tp is None and self.pp == 1
        return self.num_gpus if takes_all else self.pp

    @property
    def num_replicas(self) -> int:
        """Copies of the service that the GPUs hold."""
        return self.num_gpus // (self.ranks * self.num_stages)


def _check_count(flag: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        message = f"{flag} is {value:,}; it must be from 1 to {most:,}."
        raise OptionError(message)


def _check_budget(query: PlanQuery) -> None:
    """Refuse steps too small for one token of each request, as vLLM does."""
    slots, budget = query.max_num_seqs, query.max_num_batched_tokens
    if query.profile.engine == "vllm" and slots and budget and budget < slots:
        message = (
            f"--max-num-batched-tokens is {budget:,} and --max-num-seqs {slots:,}: vLLM refuses a "
            "step of fewer tokens than requests. Raise the first or lower the second."
        )
        raise OptionError(message)


def _check_memory(gpu: GpuSpec) -> None:
    size = gpu.memory_bytes
    if not _MIN_MEMORY_BYTES <= size <= _MAX_MEMORY_BYTES:
        words = "more than 1 PiB" if size > _MAX_MEMORY_BYTES else f"{size:,} bytes"
        message = (
            f"--gpu-mem is {words}; from 256 MiB to 1 PiB can be planned. "
            "Write a unit, as in --gpu-mem 24GiB."
        )
        raise OptionError(message)


def _check_device(query: PlanQuery) -> None:
    """Refuse a machine's memory for engines whose rules are known on GPUs alone."""
    if query.gpu.is_host and query.profile.engine not in HOST_ENGINES:
        message = (
            f"{query.profile.engine} is planned on GPUs alone, and there is only a machine's "
            f"memory: name a GPU with --gpu, or plan --engine {' or '.join(HOST_ENGINES)}."
        )
        raise OptionError(message)


def _check_ranks(query: PlanQuery) -> None:
    """Refuse ranks that the GPUs cannot be divided among."""
    if query.splits_layers and query.ranks > 1:
        message = (
            f"--tp {query.tp}: llama.cpp gives whole layers to each GPU (--split-mode layer, its "
            "default), and its modes row and tensor are not planned. Leave --tp out: all GPUs "
            "take layers; --pp says of how many, and --tp 1 is a copy on each."
        )
        raise OptionError(message)
    if query.tp is None and query.num_gpus % query.pp:
        message = f"--pp {query.pp} does not divide the {query.num_gpus} GPUs."
        raise OptionError(message)
    per_replica = query.ranks * query.num_stages
    if per_replica > query.num_gpus:
        message = (
            f"--tp {query.ranks} times --pp {query.pp} takes {per_replica} GPUs and there are "
            f"{query.num_gpus}. Ask for --num-gpus {per_replica}, or fewer ranks."
        )
        raise OptionError(message)
    if query.num_gpus % per_replica:
        message = (
            f"--tp {query.ranks} times --pp {query.pp} takes {per_replica} GPUs, which does not "
            f"divide the {query.num_gpus} there are."
        )
        raise OptionError(message)
