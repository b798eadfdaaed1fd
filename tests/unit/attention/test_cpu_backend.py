"""`CpuAttention` equals `TorchAttention`, and a row does not depend on its neighbours."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.attention.backend import AttentionBackend, AttentionInputs
from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.attention.select import select_backend
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.runner.decode_buffers import StaticBuffers
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import ceil_div
from tests.kv_codec import KV_DTYPES, decode, encode
from tests.native_kernels import kernels_for, native_kernels, needs_kernels
from tests.tiny_models import CPU, scheduled, tiny_spec

pytestmark = needs_kernels

KV = tuple[Tensor, Tensor]
# float32: the order of sums; the others: once more rounding to 8 or 11 bits of a value near 1
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
BF16_ROUNDING = 2**-8  # relative, to the nearest of 8 bits: of each weight that multiplies a value
DTYPES = st.sampled_from(sorted(TOLERANCES, key=str))

# (num_scheduled_tokens, num_computed_tokens) of each request
shapes = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 2, 9, 70]), st.sampled_from([0, 3, 40, 255, 256, 600])),
    min_size=1,
    max_size=6,
)
specs = st.builds(
    lambda heads, head_dim, window: tiny_spec(
        num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, sliding_window=window
    ),
    heads=st.sampled_from([(4, 2), (3, 3), (9, 3), (8, 1), (20, 1)]),
    head_dim=st.sampled_from([8, 16, 40, 64, 128, 256]),
    window=st.sampled_from([None, None, 1, 17, 300]),
)


@dataclass
class Step:
    """Random requests over shuffled blocks of a random pool; nothing else is in the pool."""

    requests: list[ScheduledRequest]
    block_size: int
    qkv: tuple[Tensor, Tensor, Tensor]
    pool: KV

    def inputs(self) -> AttentionInputs:
        layout = BatchLayout.from_step(StepPlan(0, tuple(self.requests)), self.block_size)
        return build_step_inputs(layout, CPU).attention

    def attend(self, backend: AttentionBackend, kv_dtype: torch.dtype | None = None) -> Tensor:
        """Attend on a copy of the pool, which may store K and V in another dtype."""
        dtype = self.qkv[0].dtype
        keys, values = (encode(side, kv_dtype or dtype) for side in self.pool)
        out = backend.attend(*self.qkv, (keys, values), backend.prepare(self.inputs(), dtype))
        shape = self.pool[0].shape
        self.written = decode(keys, shape).to(dtype), decode(values, shape).to(dtype)
        return out


def random_step(
    spec: ModelSpec,
    lengths: list[tuple[int, int]],
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Step:
    torch.manual_seed(seed)
    ordered = sorted(lengths, key=lambda length: length[0] != 1)
    counts = [ceil_div(sum(length), block_size) for length in ordered]
    blocks = list(range(sum(counts) + 3))
    random.Random(seed).shuffle(blocks)
    requests = [
        scheduled(
            [0] * num_tokens,
            [blocks.pop() for _ in range(count)],
            num_computed_tokens=num_computed,
            request_id=str(index),
        )
        for index, ((num_tokens, num_computed), count) in enumerate(
            zip(ordered, counts, strict=True)
        )
    ]
    num_tokens = sum(num_scheduled for num_scheduled, _ in ordered)
    num_heads, num_kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    q = torch.randn(num_tokens, num_heads, head_dim).to(dtype)
    k, v = torch.randn(2, num_tokens, num_kv_heads, head_dim).to(dtype)
    pool = torch.randn(2, sum(counts) + 3, block_size, num_kv_heads, head_dim).to(dtype)
    return Step(requests, block_size, (q, k, v), (pool[0], pool[1]))


def torch_attention(spec: ModelSpec) -> TorchAttention:
    return TorchAttention(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.sliding_window)


def check_against_torch(
    step: Step, spec: ModelSpec, kernels: KernelLibrary, kv_dtype: torch.dtype | None = None
) -> None:
    """Compare with torch in float32 on what the pool holds; the pools bit for bit."""
    dtype = step.qkv[0].dtype
    out = step.attend(CpuAttention(kernels, spec), kv_dtype)
    kept = [side.flatten(0, 1)[step.inputs().slot_mapping] for side in step.written]
    wide = Step(
        step.requests,
        step.block_size,
        (step.qkv[0].float(), kept[0].float(), kept[1].float()),
        (step.written[0].float(), step.written[1].float()),
    )
    expected = wide.attend(torch_attention(spec))

    tolerance = TOLERANCES[dtype]
    rounded = BF16_ROUNDING * float(kept[1].abs().max()) if dtype == torch.bfloat16 else 0.0
    atol = max(tolerance, rounded)
    torch.testing.assert_close(out.float(), expected, atol=atol, rtol=tolerance)
    if kv_dtype is None:
        assert torch.equal(kept[0], step.qkv[1])
        assert torch.equal(kept[1], step.qkv[2])


@settings(max_examples=60, deadline=None)
@given(
    spec=specs,
    lengths=shapes,
    block_size=st.sampled_from([1, 4, 16, 64]),
    dtype=DTYPES,
    kv_dtype=st.sampled_from([None, *KV_DTYPES]),
    seed=st.integers(0, 999),
)
def test_a_ragged_step_equals_torch(
    spec: ModelSpec,
    lengths: list[tuple[int, int]],
    block_size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    seed: int,
) -> None:
    """Decodes and chunks of any length attend as torch does on the same values in float32."""
    step = random_step(spec, lengths, block_size, dtype, seed)
    check_against_torch(step, spec, native_kernels(), kv_dtype)


@settings(max_examples=25, deadline=None)
@given(
    spec=specs,
    lengths=shapes,
    dtype=DTYPES,
    kv_dtype=st.sampled_from([None, *KV_DTYPES]),
    num_threads=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_a_request_s_result_depends_on_no_other(
    spec: ModelSpec,
    lengths: list[tuple[int, int]],
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    num_threads: int,
    seed: int,
) -> None:
    """Alone, each request has bit for bit what it has in the crowd, on any number of threads."""
    step = random_step(spec, lengths, dtype=dtype, seed=seed)
    backend = CpuAttention(native_kernels(), spec)
    num_default_threads = torch.get_num_threads()
    together = step.attend(backend, kv_dtype)

    torch.set_num_threads(num_threads)
    try:
        first = 0
        for request in step.requests:
            rows = slice(first, first + request.num_scheduled_tokens)
            first = rows.stop
            q, k, v = step.qkv
            alone = Step([request], step.block_size, (q[rows], k[rows], v[rows]), step.pool)

            assert torch.equal(alone.attend(backend, kv_dtype), together[rows])
    finally:
        torch.set_num_threads(num_default_threads)


@pytest.mark.parametrize("past_len", [5, 250, 700, 1010])
@pytest.mark.parametrize("window", [None, 100, 300])
@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("head_dim", [64, 72])  # 72: 16 lanes do not divide it
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_token_has_the_same_result_in_any_chunk(
    past_len: int, window: int | None, length: int, head_dim: int, dtype: torch.dtype
) -> None:
    """The rows of a chunk of 40 tokens are bit for bit those of shorter ones, and of decodes."""
    spec = tiny_spec(num_heads=9, num_kv_heads=3, head_dim=head_dim, sliding_window=window)
    step = random_step(spec, [(40, past_len)], dtype=dtype)
    backend = CpuAttention(native_kernels(), spec)
    whole = step.attend(backend)
    (request,) = step.requests

    pool, parts = step.pool, []
    for first in range(0, 40, length):
        rows = slice(first, min(first + length, 40))
        q, k, v = (part[rows] for part in step.qkv)
        chunk = scheduled([0] * len(q), request.block_table, num_computed_tokens=past_len + first)
        part = Step([chunk], step.block_size, (q, k, v), pool)
        parts.append(part.attend(backend))
        pool = part.written

    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("num_padding_rows", [0, 3])
@pytest.mark.parametrize("window", [None, 6, 300])
def test_a_padded_step_equals_the_eager_one(num_padding_rows: int, window: int | None) -> None:
    """On static buffers, wider and longer than the step, rows are bit for bit the eager ones."""
    spec = tiny_spec(num_layers=1, head_dim=16, sliding_window=window)
    lengths = [(1, 0), (1, 30), (1, 300), (1, 600)]
    step = random_step(spec, lengths)
    backend = CpuAttention(native_kernels(), spec)
    expected = step.attend(backend)
    num_rows = len(lengths) + num_padding_rows
    kv_pool = KVPool(spec, step.pool[0].shape[0], step.block_size, torch.float32, CPU, 1)
    for ours, theirs in zip(kv_pool.layers[0], step.pool, strict=True):
        ours[:-1] = theirs
        ours[-1] = float("nan")
    buffers = StaticBuffers(kv_pool, (num_rows + 2, 1024), vocab_size=1)
    shape = (num_rows, 768)
    layout = BatchLayout.from_step(StepPlan(0, tuple(step.requests)), step.block_size)
    buffers.load(layout, shape)
    q, k, v = (
        torch.cat((part, torch.zeros(num_padding_rows, *part.shape[1:]))) for part in step.qkv
    )

    prepared = backend.prepare_decode(buffers.step(shape).attention, torch.float32)
    out = backend.attend(q, k, v, kv_pool.layers[0], prepared)

    assert torch.equal(out[: len(lengths)], expected)


def test_what_lies_past_a_context_is_not_read() -> None:
    """A pool of NaN but for the requests' own past gives bit for bit the same."""
    spec = tiny_spec(head_dim=16)
    step = random_step(spec, [(1, 37), (1, 300), (9, 20), (5, 0)])
    backend = CpuAttention(native_kernels(), spec)
    expected = step.attend(backend)
    own = torch.zeros(step.pool[0].shape[:2], dtype=torch.bool)
    for request in step.requests:
        for position in range(request.num_computed_tokens):
            block = request.block_table[position // step.block_size]
            own[block, position % step.block_size] = True

    for side in step.pool:
        side[~own] = float("nan")

    assert torch.equal(step.attend(backend), expected)


def test_rows_of_a_wider_projection_are_read_where_they_lie() -> None:
    """q, k and v may be views of one projection; heads that do not lie together are copied."""
    spec = tiny_spec(head_dim=16)
    step = random_step(spec, [(1, 20), (6, 3)])
    backend = CpuAttention(native_kernels(), spec)
    expected = step.attend(backend)

    fused = torch.cat(step.qkv, dim=1)
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    step.qkv = (q, k, v.transpose(1, 2).contiguous().transpose(1, 2))

    assert torch.equal(step.attend(backend), expected)


def test_the_arena_holds_partial_results_of_long_contexts() -> None:
    """One task sees 256 keys; 8 rows of 2,048 tokens of 9 heads of 64 leave 149 KiB."""
    backend = CpuAttention(native_kernels(), tiny_spec(num_heads=9, num_kv_heads=3, head_dim=64))

    assert backend.arena_bytes(8, 2048) == 8 * 9 * 8 * (2 + 64) * 4
    assert backend.arena_bytes(8, 256) == 0
    assert not backend.depends_on_width


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 512}, "heads of up to 256.*has 2 of 512"),
        ({"num_heads": 65, "num_kv_heads": 1}, "up to 64 of them.*has 65 of 8"),
        ({"head_dim": 12}, "multiples of 8; head_dim is 12"),
        ({"intermediate_size": 49}, "multiples of 8; intermediate_size is 49"),
    ],
)
def test_shapes_without_code_are_refused(changes: dict[str, object], said: str) -> None:
    """The refusal names what is served and what the model has."""
    with pytest.raises(KernelError, match=said):
        CpuAttention(native_kernels(), tiny_spec(**changes))


def test_native_operators_attend_on_the_cpu_alone() -> None:
    """`select_backend` gives a CUDA device torch's attention whatever the machine has."""
    kernels = native_kernels()

    assert isinstance(select_backend(tiny_spec(), CPU, kernels), CpuAttention)
    assert isinstance(select_backend(tiny_spec(), torch.device("cuda"), kernels), TorchAttention)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["x86-64", "x86-64-v3"])
def test_other_vectors_give_the_same(architecture: str) -> None:
    """Compiled for 128-bit and 256-bit vectors, the one source still equals torch."""
    kernels = kernels_for(architecture)
    lengths = [(1, 3), (1, 700), (9, 40), (70, 5)]

    for dtype in TOLERANCES:
        for head_dim, window in ((8, None), (40, 17), (64, None)):
            spec = tiny_spec(num_heads=9, num_kv_heads=3, head_dim=head_dim, sliding_window=window)
            for kv_dtype in (None, *KV_DTYPES):
                step = random_step(spec, lengths, dtype=dtype)
                check_against_torch(step, spec, kernels, kv_dtype)
