"""The arguments of each native operator, field for field as in `csrc/ops.h`.

Pointers are addresses as ints; None is the null pointer. What the fields mean is said there.
"""

import ctypes
from functools import cache
from typing import ClassVar

_POINTER, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

# As `csrc/ops.h` numbers them; the last two are for K and V alone.
DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn")


class OpArgs(ctypes.Structure):
    """Arguments of some operator.

    Attributes:
        kind: Its place in `csrc/api.cpp`.
        row_fields: Fields that are a multiple of its number of rows.
        request_fields: Fields that are the number of the step's requests.
    """

    kind: ClassVar[int]
    row_fields: ClassVar[tuple[str, ...]] = ("rows",)
    request_fields: ClassVar[tuple[str, ...]] = ()


class RmsNormArgs(OpArgs):
    """Add, and norm the sum."""

    kind = 0
    _fields_ = (
        *((name, _POINTER) for name in ("x", "delta", "weight", "sum", "out")),
        ("rows", _INT),
        ("size", _INT),
        ("eps", _DOUBLE),
        ("dtype", _INT),
    )


class SiluMulArgs(OpArgs):
    """SiLU of one half times the other."""

    kind = 1
    _fields_ = (
        *((name, _POINTER) for name in ("gate_up", "out")),
        *((name, _INT) for name in ("rows", "size", "dtype")),
    )


class PrepareHeadsArgs(OpArgs):
    """Norm and rotate query and key heads in place."""

    kind = 2
    _fields_ = (
        *((name, _POINTER) for name in ("heads", "cos", "sin", "q_weight", "k_weight")),
        *(
            (name, _INT)
            for name in ("rows", "row_stride", "num_q", "num_k", "head_dim", "table_stride")
        ),
        ("eps", _DOUBLE),
        ("dtype", _INT),
    )


class PagedAttentionArgs(OpArgs):
    """Store K and V of a step, and attend over the pool."""

    kind = 3
    row_fields = ("num_tokens",)
    request_fields = ("num_requests",)
    _fields_ = (
        *((name, _POINTER) for name in ("q", "k", "v", "out", "k_pool", "v_pool")),
        *(
            (name, _POINTER)
            for name in ("slot_mapping", "block_tables", "context_lens", "query_starts", "partials")
        ),
        *((name, _INT) for name in ("q_stride", "k_stride", "v_stride", "table_stride")),
        *((name, _INT) for name in ("num_tokens", "num_requests", "max_partitions")),
        ("partition_keys", _INT),
        *((name, _INT) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size")),
        *((name, _INT) for name in ("window", "dtype", "kv_dtype")),
    )


class GatherRowsArgs(OpArgs):
    """Rows of a table, looked up."""

    kind = 4
    _fields_ = (
        *((name, _POINTER) for name in ("table", "index", "out")),
        *((name, _INT) for name in ("rows", "row_bytes")),
    )


class AddArgs(OpArgs):
    """The sum of two tensors."""

    kind = 5
    row_fields = ("count",)
    _fields_ = (
        *((name, _POINTER) for name in ("x", "delta", "out")),
        *((name, _INT) for name in ("count", "dtype")),
    )


class WidenArgs(OpArgs):
    """A tensor in float32."""

    kind = 6
    row_fields = ("count",)
    _fields_ = (
        *((name, _POINTER) for name in ("x", "out")),
        *((name, _INT) for name in ("count", "dtype")),
    )


class RowMaxArgs(OpArgs):
    """The largest value of each row, and where it stands."""

    kind = 7
    _fields_ = (
        *((name, _POINTER) for name in ("x", "maxima", "places")),
        *((name, _INT) for name in ("rows", "size")),
    )


class PackedLinearArgs(OpArgs):
    """Product with a packed weight."""

    kind = 8
    _fields_ = (
        *((name, _POINTER) for name in ("x", "data", "scales", "minimums", "bias", "out")),
        ("scratch", _POINTER),
        *((name, _INT) for name in ("rows", "in_size", "out_size")),
        *((name, _INT) for name in ("group_size", "activation_group", "format", "dtype")),
    )


class EmbeddingArgs(OpArgs):
    """Rows of a packed weight."""

    kind = 9
    _fields_ = (
        *((name, _POINTER) for name in ("ids", "data", "scales", "minimums", "out")),
        *((name, _INT) for name in ("rows", "in_size", "group_size", "format", "dtype")),
    )


class FitInt4Args(OpArgs):
    """Rows of weights, fitted to 4 bits."""

    kind = 10
    _fields_ = (
        *((name, _POINTER) for name in ("x", "shares", "values", "scales", "minimums")),
        *((name, _INT) for name in ("rows", "in_size", "dtype")),
    )


ALL_OP_ARGS: tuple[type[OpArgs], ...] = (
    RmsNormArgs,
    SiluMulArgs,
    PrepareHeadsArgs,
    PagedAttentionArgs,
    GatherRowsArgs,
    AddArgs,
    WidenArgs,
    RowMaxArgs,
    PackedLinearArgs,
    EmbeddingArgs,
    FitInt4Args,
)


@cache
def dtype_code(dtype: object) -> int:
    """Return the number of a torch dtype, which prints as `torch.float32`."""
    return DTYPES.index(str(dtype).rpartition(".")[2])


@cache
def pointer_offsets(args: type[OpArgs]) -> tuple[int, ...]:
    """Return where in the struct its pointers lie, in bytes."""
    fields = args._fields_
    return tuple(getattr(args, name).offset for name, kind, *_ in fields if kind is _POINTER)


@cache
def row_offsets(args: type[OpArgs]) -> tuple[int, ...]:
    """Return where in the struct `row_fields` lie, in bytes."""
    return tuple(getattr(args, name).offset for name in args.row_fields)


@cache
def request_offsets(args: type[OpArgs]) -> tuple[int, ...]:
    """Return where in the struct `request_fields` lie, in bytes."""
    return tuple(getattr(args, name).offset for name in args.request_fields)
