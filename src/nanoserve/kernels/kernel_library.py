"""`KernelLibrary`: the built library in this process, and the calls into it."""

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_build import build_kernels
from nanoserve.kernels.native_program import NativeProgram, ProgramTape
from nanoserve.kernels.op_args import ALL_OP_ARGS, OpArgs

_ELF_64 = b"\x7fELF\x02\x01"  # 64 bits, little end first
_ELF_HEADER = struct.Struct("<40xq")  # where the table of sections begins


class KernelLibrary:
    """Runs native operators, one by one or a whole program of them; or takes them down.

    A call into the library gives up Python's lock. One thread at a time may use this: while
    one records, the calls of another would land on its tape.
    """

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            KernelError: It cannot be loaded, or was built from other arguments.
        """
        _check_whole(path)
        try:
            self._library = ctypes.CDLL(str(path))
            self._run_one = self._library.nanoserve_run_one
            self._run_all = self._library.nanoserve_run
            self._run_timed = self._library.nanoserve_run_timed
        except (OSError, AttributeError) as error:
            message = f"The native operators in {path} cannot be loaded: {error}"
            raise KernelError(message) from error
        self._run_one.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32)
        self._run_all.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self._run_timed.argtypes = (*self._run_all.argtypes, ctypes.c_void_p)
        for function in (self._run_one, self._run_all, self._run_timed):
            function.restype = None
        self._library.nanoserve_args_bytes.argtypes = (ctypes.c_int64,)
        self._library.nanoserve_args_bytes.restype = ctypes.c_int64
        self.path = path
        self._tape: ProgramTape | None = None
        self._check_arguments()

    @property
    def vector_bits(self) -> int:
        """Width of the vectors it was compiled for."""
        return int(self._library.nanoserve_vector_bits())

    @property
    def panel_outputs(self) -> int:
        """Outputs of a packed weight's panel."""
        return int(self._library.nanoserve_panel_outputs())

    @property
    def has_bf16_products(self) -> bool:
        """Whether it multiplies bfloat16 without widening it first."""
        return bool(self._library.nanoserve_has_bf16_products())

    @property
    def num_recorded(self) -> int:
        """Operators that the tape has taken down so far; 0 while none records."""
        return 0 if self._tape is None else self._tape.num_ops

    def run(self, args: OpArgs, num_threads: int) -> None:
        """Run one operator; its pointers must stay valid until the return.

        While a tape records it is taken down, and not run.
        """
        if self._tape is not None:
            self._tape.append(args)
        else:
            self._run_one(args.kind, ctypes.byref(args), num_threads)

    def note_result(self, address: int, num_bytes: int, owner: object) -> None:
        """Say where an operator's result will be written; see `ProgramTape.note_result`.

        Only a tape that records cares: what it is not told of is not moved, and is gone when
        the program runs.
        """
        if self._tape is not None:
            self._tape.note_result(address, num_bytes, owner)

    @contextmanager
    def record(self) -> Iterator[ProgramTape]:
        """Take down the operators called in the body rather than run them."""
        self._tape = tape = ProgramTape()
        try:
            yield tape
        finally:
            self._tape = None

    def run_program(self, program: NativeProgram, num_threads: int) -> None:
        """Run every operator of `program`, in one go of all threads."""
        self._run_all(program.ops, len(program.ops), num_threads)

    def time_program(self, program: NativeProgram, num_threads: int) -> list[int]:
        """Run `program`, and return the nanoseconds that each operator took this thread."""
        nanoseconds = (ctypes.c_int64 * len(program.ops))()
        self._run_timed(program.ops, len(program.ops), num_threads, nanoseconds)
        return list(nanoseconds)

    def describe(self) -> str:
        """Return what it was compiled for, for people."""
        products = ", bfloat16 products" if self.has_bf16_products else ""
        return f"{self.vector_bits}-bit vectors{products}"

    def _check_arguments(self) -> None:
        for args in ALL_OP_ARGS:
            ours, theirs = ctypes.sizeof(args), self._library.nanoserve_args_bytes(args.kind)
            if ours != theirs:
                message = f"{self.path}: {args.__name__} has {ours} bytes here and {theirs} there"
                raise KernelError(message)


def load_kernels() -> KernelLibrary:
    """Build the library if need be, and load it; one that was damaged is built again.

    Raises:
        KernelError: This machine cannot build or load it.
    """
    path = build_kernels()
    try:
        return KernelLibrary(path)
    except KernelError:
        with suppress(OSError):
            path.unlink()
    return KernelLibrary(build_kernels())


def _check_whole(path: Path) -> None:
    """Refuse a file that was cut short: the loader would map what is not there, and die of it.

    A 64-bit ELF file ends with its table of sections, and says where that begins.

    Raises:
        KernelError: It ends too early.
    """
    try:
        with path.open("rb") as file:
            header, num_bytes = file.read(_ELF_HEADER.size), path.stat().st_size
    except OSError:
        return  # the loader says it better
    if len(header) < _ELF_HEADER.size or not header.startswith(_ELF_64):
        return
    (table_start,) = _ELF_HEADER.unpack(header)
    if num_bytes <= table_start:
        message = (
            f"The native operators in {path} cannot be loaded: the file was cut short, it has "
            f"{num_bytes:,} bytes and its last table begins at {table_start:,}."
        )
        raise KernelError(message)
