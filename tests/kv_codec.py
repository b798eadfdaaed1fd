"""K and V as a pool holds them, made and read back by plain torch: the oracle of the native code."""

import torch
from torch import Tensor

KV_DTYPES = (torch.int8, torch.float8_e4m3fn)
MAX_FP8 = 448.0


def encode(heads: Tensor, dtype: torch.dtype) -> Tensor:
    """Return one side of a layer, [N, S, K, D] of floats, as a pool of that dtype holds it."""
    if dtype == torch.float8_e4m3fn:
        return heads.float().clamp(-MAX_FP8, MAX_FP8).to(dtype)
    if dtype != torch.int8:
        return heads.to(dtype, copy=True)
    scales = heads.float().abs().amax(-1) / 127
    values = (heads.float() / scales[..., None]).nan_to_num(0.0).round().to(torch.int8)
    by_head = scales.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return torch.cat((values.flatten(1), by_head.view(torch.int8).flatten(1)), dim=1)


def decode(side: Tensor, heads_shape: torch.Size) -> Tensor:
    """Return what a side of a layer means, in float32, [N, S, K, D]."""
    if side.dtype != torch.int8:
        return side.float()
    num_blocks, block_size, num_kv_heads, head_dim = heads_shape
    num_values = block_size * num_kv_heads * head_dim
    values = side[:, :num_values].reshape(heads_shape).float()
    scales = side[:, num_values:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return values * scales.view(num_blocks, num_kv_heads, block_size).transpose(1, 2)[..., None]
