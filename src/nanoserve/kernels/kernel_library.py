"""`KernelLibrary`: the built library in this process, and the calls into it."""

import ctypes
from pathlib import Path

from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_build import build_kernels
from nanoserve.kernels.op_args import ALL_OP_ARGS, OpArgs


class KernelLibrary:
    """Runs native operators. A call gives up Python's lock; the library keeps no state."""

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            KernelError: It cannot be loaded, or was built from other arguments.
        """
        try:
            self._library = ctypes.CDLL(str(path))
            self._run_one = self._library.nanoserve_run_one
        except (OSError, AttributeError) as error:
            message = f"The native operators in {path} cannot be loaded: {error}"
            raise KernelError(message) from error
        self._run_one.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32)
        self._run_one.restype = None
        self._library.nanoserve_args_bytes.argtypes = (ctypes.c_int64,)
        self._library.nanoserve_args_bytes.restype = ctypes.c_int64
        self.path = path
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

    def run(self, args: OpArgs, num_threads: int) -> None:
        """Run one operator; its pointers must stay valid until the return."""
        self._run_one(args.kind, ctypes.byref(args), num_threads)

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
    """Build the library if need be, and load it.

    Raises:
        KernelError: This machine cannot build or load it.
    """
    return KernelLibrary(build_kernels())
