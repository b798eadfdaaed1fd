"""A change that an explained log suggests lets the same boot through when it is made."""

import re
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.boot_fixes import suggest_fixes
from nanoserve.explain.logged_boot import LoggedBoot, LoggedError
from nanoserve.explain.pool_fixes import profile_of_boot
from nanoserve.units import GIB, MIB

VERSION = "0.21.0"
FIXED_BYTES = round(profile_of_boot(LoggedBoot(version=VERSION)).fixed_gib[2] * GIB)


@dataclass(frozen=True)
class Engine:
    """A vLLM that divides a card as its sums say, weights and context apart."""

    total_bytes: int
    utilization: float
    weight_bytes: int
    step_bytes: int
    graph_bytes: int
    token_bytes: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192

    @property
    def pool_bytes(self) -> int:
        held = self.weight_bytes + FIXED_BYTES + self.step_bytes + self.graph_bytes
        return int(self.utilization * self.total_bytes) - held

    @property
    def request_bytes(self) -> int:
        return self.token_bytes * self.max_model_len

    @property
    def serves(self) -> bool:
        return self.pool_bytes >= self.request_bytes

    def boot(self) -> LoggedBoot:
        error = LoggedError(
            "request larger than pool", "", "pool", self.request_bytes, self.pool_bytes
        )
        if self.pool_bytes <= 0:
            error = LoggedError("no room for pool", "", "pool")
        return LoggedBoot(
            engine="vllm",
            version=VERSION,
            total_bytes=self.total_bytes,
            utilization=self.utilization,
            weight_bytes=self.weight_bytes,
            activation_bytes=FIXED_BYTES + self.step_bytes,
            graph_estimate_bytes=self.graph_bytes,
            is_graph_estimate_in_budget=True,
            pool_bytes=self.pool_bytes,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            error=error,
        )

    def with_change(self, change: str) -> "Engine":
        """Return the engine started with a change's flags; several GPUs are not played."""
        flags = dict(re.findall(r"--([a-z-]+) ?([\w.]+)?", change))
        engine = self
        if "gpu-memory-utilization" in flags:
            engine = replace(engine, utilization=float(flags["gpu-memory-utilization"]))
        if "max-model-len" in flags:
            engine = replace(engine, max_model_len=int(flags["max-model-len"]))
        if "kv-cache-dtype" in flags:
            engine = replace(engine, token_bytes=-(-engine.token_bytes // 2))
        if "enforce-eager" in flags:
            engine = replace(engine, graph_bytes=0)
        if "max-num-seqs" in flags:
            shrink = self.max_num_seqs // int(flags["max-num-seqs"])
            engine = replace(engine, step_bytes=engine.step_bytes // shrink)
        return engine


engines = st.builds(
    Engine,
    total_bytes=st.integers(8 * GIB, 200 * GIB),
    utilization=st.integers(50, 95).map(lambda percent: percent / 100),
    weight_bytes=st.integers(GIB, 190 * GIB),
    step_bytes=st.integers(0, 20 * GIB),
    graph_bytes=st.integers(0, 8 * GIB),
    token_bytes=st.integers(1, MIB // 2).map(lambda half: 2 * half),
    max_model_len=st.integers(1, 8192).map(lambda blocks: 16 * blocks),
)


@given(engines)
def test_each_suggested_change_would_do(engine: Engine) -> None:
    """Started again with the change, a request fits; where its size was unknown, a pool is there."""
    if engine.serves:
        return
    for fix in suggest_fixes(engine.boot()):
        if "tensor-parallel" in fix.change:
            continue
        changed = engine.with_change(fix.change)

        assert changed != engine
        if engine.pool_bytes > 0:
            assert changed.pool_bytes + 2 >= changed.request_bytes, fix
        else:
            assert changed.pool_bytes > 0, fix
