"""`nanoserve kernels`: build the native operators, and say what there is."""

import time

from nanoserve.kernels.kernel_build import build_kernels, cache_folder, plan_build
from nanoserve.kernels.kernel_library import load_kernels
from nanoserve.options import DEFAULT_WEIGHT_CACHE_BYTES
from nanoserve.units import format_bytes
from nanoserve.weights.cached_files import CachedFiles


def print_build() -> None:
    """Build the native operators, unless they are, and print where they lie.

    Raises:
        KernelError: This machine cannot build them.
    """
    started = time.perf_counter()
    is_built = plan_build().is_built
    path = build_kernels()
    done = "are already built" if is_built else f"built in {time.perf_counter() - started:.1f} s"
    print(f"Native operators {done}: {path}")


def print_info() -> None:
    """Print the compiler, its flags, what it built, and the packed weights on disk.

    Raises:
        KernelError: This machine cannot build or load them.
    """
    plan = plan_build()
    print(f"compiler  {plan.compiler} ({plan.compiler_version})")
    print(f"flags     {' '.join(plan.flags)}")
    print(f"library   {plan.library_path}")
    built = load_kernels().describe() if plan.is_built else "not built; nanoserve kernels build"
    print(f"built     {built}")
    weights = CachedFiles(cache_folder("weights"), DEFAULT_WEIGHT_CACHE_BYTES)
    num_files, num_bytes = weights.used()
    print(f"weights   {weights.folder}: {num_files:,} packed, {format_bytes(num_bytes)}")
