"""A flat list of native operators, recorded once and run again without Python between them.

```
ProgramTape       operators as they were called, on results that have no place yet
NativeProgram     the same operators, their results in a block of memory, one call to run
```

While a tape records, nothing is computed: a result is an address for later operators. Owns
which bytes results share (see `result_layout`). Does not own the block, nor what else the
operators read and write: weights, pool, inputs. Who records keeps those where they are.
"""

import ctypes
from bisect import bisect_right

from nanoserve.kernels.op_args import ALL_OP_ARGS, OpArgs, pointer_offsets
from nanoserve.kernels.result_layout import Lifetime, ResultLayout, lay_out

_WORD_BYTES = 8  # every field of every operator is one word: see `op_args`


class Op(ctypes.Structure):
    """An operator of a program, as `csrc/api.cpp` has it."""

    _fields_ = (("kind", ctypes.c_int64), ("args", ctypes.c_void_p))


class ProgramTape:
    """Takes down operators in the order in which they are called."""

    def __init__(self) -> None:
        self._kinds: list[int] = []
        self._starts: list[int] = []  # of each operator's arguments in `_args`
        self._args = bytearray()
        self._results: list[tuple[int, int]] = []  # address and bytes of each
        self._owners: list[object] = []

    @property
    def num_ops(self) -> int:
        """Operators so far."""
        return len(self._kinds)

    def append(self, args: OpArgs) -> None:
        """Take down one operator; `args` may be used for another afterwards."""
        self._kinds.append(args.kind)
        self._starts.append(len(self._args))
        self._args += args

    def note_result(self, address: int, num_bytes: int, owner: object) -> None:
        """Let the bytes at `address` stand for a result; nothing ever touches them.

        Args:
            address: Where they begin.
            num_bytes: How many they are.
            owner: Kept for as long as the tape, so that no other result gets the address.
        """
        if num_bytes:
            self._results.append((address, num_bytes))
            self._owners.append(owner)

    def finish(self) -> "Recording":
        """Find out from where to where each result is needed.

        Pointers are told by their type alone: one that points into a result, wherever into
        it, is moved with the result.
        """
        results = sorted(self._results)
        starts = [address for address, _ in results]
        uses: list[list[int]] = [[] for _ in results]
        pointers: list[tuple[int, int, int]] = []
        words = memoryview(self._args).cast("Q")
        for op, (kind, start) in enumerate(zip(self._kinds, self._starts, strict=True)):
            for offset in pointer_offsets(ALL_OP_ARGS[kind]):
                place = (start + offset) // _WORD_BYTES
                address = words[place]
                index = bisect_right(starts, address) - 1
                if index >= 0 and address < sum(results[index]):
                    uses[index].append(op)
                    pointers.append((place, index, address - starts[index]))
        lifetimes = [
            Lifetime(num_bytes, min(ops, default=0), max(ops, default=0))
            for (_, num_bytes), ops in zip(results, uses, strict=True)
        ]
        return Recording(self._kinds, self._starts, self._args, pointers, lifetimes)


class Recording:
    """What a tape took down, its results without a place.

    Attributes:
        lifetimes: From where to where each result is needed.
        layout: Where the results go, in a block that is still to be found.
    """

    def __init__(
        self,
        kinds: list[int],
        starts: list[int],
        args: bytearray,
        pointers: list[tuple[int, int, int]],
        lifetimes: list[Lifetime],
    ) -> None:
        self.lifetimes = lifetimes
        self.layout: ResultLayout = lay_out(lifetimes)
        self._kinds, self._starts, self._args = kinds, starts, args
        self._pointers = pointers  # which word each is, the result it points into, how far

    def place(self, block_address: int) -> "NativeProgram":
        """Return the program with its results in a block of at least `layout.num_bytes` bytes."""
        args = bytearray(self._args)
        words = memoryview(args).cast("Q")
        for place, index, distance in self._pointers:
            address = block_address + self.layout.offsets[index] + distance
            words[place] = address
        return NativeProgram(self._kinds, self._starts, args)


class NativeProgram:
    """Operators and their arguments, laid out as the library takes them.

    Attributes:
        ops: The operators.
        kinds: The kind of each.
        starts: Where the arguments of each begin, in bytes.
        words: All arguments; what is written here, the next run reads.
    """

    def __init__(self, kinds: list[int], starts: list[int], args: bytearray) -> None:
        self.kinds, self.starts = tuple(kinds), tuple(starts)
        self._args = (ctypes.c_char * len(args)).from_buffer_copy(args)
        base = ctypes.addressof(self._args)
        ops = [Op(kind, base + start) for kind, start in zip(kinds, starts, strict=True)]
        self.ops = (Op * len(ops))(*ops)
        self.words = memoryview(self._args).cast("B").cast("Q")

    @property
    def num_bytes(self) -> int:
        """Bytes of the operators and their arguments."""
        return ctypes.sizeof(self.ops) + ctypes.sizeof(self._args)
