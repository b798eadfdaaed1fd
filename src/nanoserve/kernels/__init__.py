"""Native operators for the CPU: their C++ source, its build and the calls into it."""
