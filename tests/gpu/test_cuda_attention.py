"""FlashInfer on a CUDA device: torch's attention, and tokens that capture does not change."""

import pytest
import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.flashinfer_backend import FlashInferAttention, load_flashinfer
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.errors import KernelError
from nanoserve.launch.llm import LLM
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import StepPlan
from tests.reference.prompts import PROMPTS
from tests.tiny_models import BLOCK_SIZE, scheduled, tiny_spec

SPEC = tiny_spec(num_heads=4, num_kv_heads=2, head_dim=64, num_layers=1)


def is_installed() -> bool:
    try:
        load_flashinfer(SPEC, "bfloat16")
    except KernelError:
        return False
    return True


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not is_installed(), reason="needs FlashInfer"),
]


def test_a_ragged_step_equals_torch() -> None:
    """Decodes and chunks over shuffled blocks."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    pool = KVPool(SPEC, 64, BLOCK_SIZE, torch.bfloat16, device)
    for side in pool.layers[0]:
        side.normal_()
    tables = torch.randperm(64).tolist()
    requests = [
        scheduled([0], tables[:9], num_computed_tokens=30),
        scheduled([0], tables[9:12], num_computed_tokens=6),
        scheduled([0] * 11, tables[12:24], num_computed_tokens=5),
    ]
    layout = BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE)
    inputs = build_step_inputs(layout, device).attention
    q, k, v = (torch.randn(13, n, 64, device=device).bfloat16() for n in (4, 2, 2))
    outs = []
    backends: tuple[AttentionBackend, ...] = (
        FlashInferAttention(load_flashinfer(SPEC, "bfloat16"), SPEC, device),
        TorchAttention(4, 2, 64),
    )
    for backend in backends:
        kv = (pool.layers[0][0].clone(), pool.layers[0][1].clone())
        prepared = backend.prepare(inputs, torch.bfloat16)
        outs.append(backend.attend(q, k, v, kv, prepared))

    torch.testing.assert_close(outs[0], outs[1], atol=2**-6, rtol=2**-6)


def test_captured_decodes_draw_the_tokens_of_eager_ones() -> None:
    """SmolLM2 in bfloat16, eight prompts at once, with and without graphs."""
    sampling = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    answers = []
    for mode in ("eager", "captured"):
        llm = LLM(
            "smollm2",
            device="cuda",
            dtype="bfloat16",
            attention_backend="flashinfer",
            decode_mode=mode,
            max_model_len=256,
            num_blocks=256,
        )
        outputs = llm.generate(PROMPTS[:8], sampling, show_progress=False)
        answers.append([output.outputs[0].token_ids for output in outputs])

    assert answers[0] == answers[1]
