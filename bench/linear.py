"""How fast are products with weights? `python bench/linear.py [rows,rows,...] [name,name,...]`.

The products of a step of SmolLM2-135M: 30 layers and the tied head, all read from memory each
time. Up to 32 rows the head has as many; beyond, one, as in a prefill. For each number of rows
and each kind of weight: the least of some rounds, weight bytes a second and arithmetic without
the head. Beside the native kinds, torch's `F.linear` and oneDNN's packed weights.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoserve.kernels.kernel_library import load_kernels
from nanoserve.kernels.packed_weight import (
    PackedWeight,
    PanelMemory,
    pack,
    quantize_int4,
    quantize_int8,
)
from nanoserve.model.native_ops import NativeOps

LAYERS = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # outputs, inputs
NUM_LAYERS = 30
HEAD = (49152, 576)
MOST_HEAD_ROWS = 32
NUM_THREADS = 2
MEMORY_BYTES = 600 << 20
Product = Callable[[Tensor], object]


def products_of(make: Callable[[Tensor], tuple[Product, int]]) -> tuple[list[Product], int]:
    """Return the products of a step, layer by layer, the head last, and their weights' bytes."""
    torch.manual_seed(0)
    shapes = [*LAYERS * NUM_LAYERS, HEAD]
    made = [make(torch.randn(shape).to(torch.bfloat16)) for shape in shapes]
    return [product for product, _ in made], sum(num_bytes for _, num_bytes in made)


def packed(make: Callable[[Tensor, PanelMemory], PackedWeight]) -> tuple[list[Product], int]:
    """Return the products of natively packed weights."""
    ops, memory = NativeOps(load_kernels()), PanelMemory(MEMORY_BYTES)
    pack_s = 0.0

    def product(weight: Tensor) -> tuple[Product, int]:
        nonlocal pack_s
        start_s = time.perf_counter()
        made = make(weight, memory)
        pack_s += time.perf_counter() - start_s
        return partial(ops.linear, weight=made, bias=None), made.num_bytes

    products, num_bytes = products_of(product)
    print(f"packed {num_bytes / 1e6:.1f} MB in {pack_s:.2f} s")
    return products, num_bytes


def torch_product(weight: Tensor) -> tuple[Product, int]:
    """Return torch's."""
    return partial(F.linear, weight=weight), weight.nbytes


def onednn_product(weight: Tensor) -> tuple[Product, int]:
    """Return oneDNN's, of a weight it has packed."""
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
    multiply = torch.ops.mkldnn._linear_pointwise
    return (lambda x: multiply(x, ordered, None, "none", [], "")), weight.nbytes


def grouped(weight: Tensor, memory: PanelMemory) -> PackedWeight:
    """Quantize to 8 bits with a scale for 64 inputs."""
    return quantize_int8(weight, 64, memory)


def by_row(weight: Tensor, memory: PanelMemory) -> PackedWeight:
    """Quantize to 8 bits with a scale for each output."""
    return quantize_int8(weight, weight.shape[1], memory)


def as_dtype(weight: Tensor, memory: PanelMemory, dtype: torch.dtype) -> PackedWeight:
    """Convert before packing."""
    return pack(weight.to(dtype), memory)


def four_bits(weight: Tensor, memory: PanelMemory) -> PackedWeight:
    """Quantize to 4 bits with a scale and a minimum for 32 inputs."""
    return quantize_int4(weight, 32, memory)


KINDS: dict[str, Callable[[], tuple[list[Product], int]]] = {
    "bf16": partial(packed, pack),
    "int8": partial(packed, by_row),
    "int8-64": partial(packed, grouped),
    "int4-32": partial(packed, four_bits),
    "float16": partial(packed, partial(as_dtype, dtype=torch.float16)),
    "float32": partial(packed, partial(as_dtype, dtype=torch.float32)),
    "torch": partial(products_of, torch_product),
    "onednn": partial(products_of, onednn_product),
}


def measure(
    products: list[Product], num_rows: int, rounds: int, dtype: torch.dtype
) -> tuple[float, float]:
    """Return the least seconds of all products, and of those without the head."""
    x = {size: torch.randn(num_rows, size).to(dtype) for _, size in (*LAYERS, HEAD)}
    head_x = x[HEAD[1]][: num_rows if num_rows <= MOST_HEAD_ROWS else 1]
    inputs = [x[size] for _, size in LAYERS] * NUM_LAYERS
    best = (float("inf"), 0.0)
    for _ in range(rounds):
        start_s = time.perf_counter()
        for product, rows in zip(products, inputs, strict=False):
            product(rows)
        layers_s = time.perf_counter() - start_s
        products[-1](head_x)
        best = min(best, (time.perf_counter() - start_s, layers_s))
    return best


def main() -> None:
    """Print the table."""
    rows = sys.argv[1] if len(sys.argv) > 1 else "1,4,8,16,32,128,512"
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else list(KINDS)
    torch.set_num_threads(NUM_THREADS)
    elements = NUM_LAYERS * sum(out_size * in_size for out_size, in_size in LAYERS)
    print("kind        rows      ms   GB/s  GFLOP/s (layers)")
    for name in names:
        products, num_bytes = KINDS[name]()
        dtype = getattr(torch, name if name in ("float16", "float32") else "bfloat16")
        for num_rows in map(int, rows.split(",")):
            rounds = 15 if num_rows <= MOST_HEAD_ROWS else 4
            total_s, layers_s = measure(products, num_rows, rounds, dtype)
            rate = 2 * num_rows * elements / layers_s / 1e9
            print(
                f"{name:11s} {num_rows:4d} {total_s * 1e3:7.2f} {num_bytes / total_s / 1e9:6.1f}"
                f" {rate:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
