"""`nanoserve kernels`: build the native operators, and say what there is."""

import time

from nanoserve.kernels.kernel_build import build_kernels, plan_build
from nanoserve.kernels.kernel_library import load_kernels


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
    """Print the compiler, its flags, the cached library and what it was compiled for.

    Raises:
        KernelError: This machine cannot build or load them.
    """
    plan = plan_build()
    print(f"compiler  {plan.compiler} ({plan.compiler_version})")
    print(f"flags     {' '.join(plan.flags)}")
    print(f"library   {plan.library_path}")
    built = load_kernels().describe() if plan.is_built else "not built; nanoserve kernels build"
    print(f"built     {built}")
