"""Arguments of the operators on packed weights, made of tensors, which must outlive the call."""

from torch import Tensor

from nanoserve.errors import KernelError
from nanoserve.kernels.op_args import EmbeddingArgs, PackedLinearArgs, dtype_code
from nanoserve.kernels.packed_weight import PackedWeight, activation_group_size

_FORMATS = {"int8": 1, "int4": 2}  # as `csrc/ops.h` numbers them; others are dense


def packed_linear_args(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, out: Tensor, scratch: Tensor
) -> PackedLinearArgs:
    """Return the arguments of `out = x @ weight.T + bias`.

    Args:
        x: [T, in_size], contiguous.
        weight: Of the dtype of `x`, or quantized.
        bias: [out_size] of the dtype of `x`, or None.
        out: [T, out_size] of the dtype of `x`, contiguous.
        scratch: uint8, at least `scratch_bytes(weight, T)`.

    Raises:
        KernelError: A dense weight has another dtype than `x`.
    """
    _check_dtype(weight, x)
    return PackedLinearArgs(
        x=x.data_ptr(),
        data=weight.data.data_ptr(),
        scales=_address(weight.scales),
        minimums=_address(weight.minimums),
        bias=_address(bias),
        out=out.data_ptr(),
        scratch=scratch.data_ptr(),
        rows=x.shape[0],
        in_size=weight.in_size,
        out_size=weight.out_size,
        group_size=weight.group_size,
        activation_group=activation_group_size(weight.group_size),
        format=_FORMATS.get(weight.format, 0),
        dtype=dtype_code(x.dtype),
    )


def embedding_args(ids: Tensor, weight: PackedWeight, out: Tensor) -> EmbeddingArgs:
    """Return the arguments of `out = weight[ids]`.

    Args:
        ids: int64 [T], each below `out_size`.
        weight: Of the dtype of `out`, or quantized.
        out: [T, in_size], contiguous.

    Raises:
        KernelError: A dense weight has another dtype than `out`.
    """
    _check_dtype(weight, out)
    return EmbeddingArgs(
        ids=ids.data_ptr(),
        data=weight.data.data_ptr(),
        scales=_address(weight.scales),
        minimums=_address(weight.minimums),
        out=out.data_ptr(),
        rows=ids.shape[0],
        in_size=weight.in_size,
        group_size=weight.group_size,
        format=_FORMATS.get(weight.format, 0),
        dtype=dtype_code(out.dtype),
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check_dtype(weight: PackedWeight, activations: Tensor) -> None:
    if weight.dtype not in (None, activations.dtype):
        message = (
            f"A packed weight of {weight.format} was given activations of {activations.dtype}. "
            "Pack the weight in the activations' dtype, or quantize it."
        )
        raise KernelError(message)
