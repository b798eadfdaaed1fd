"""Recorders for a CPU: one that keeps a CUDA graph's promises, one without memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanoserve.runner.graph_recorder import Replay, ReplayRecorder
from nanoserve.runner.native_recorder import NativeRecorder, NativeReplay

aten = torch.ops.aten
HOST_SYNCS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default}


class TapeRecorder:
    """Records the operators of a step with the tensors they were called on.

    A replay runs those operators on those tensors and no Python of the step, so that a host
    value of the record stays as it was, and a step that left its buffers reads stale ones.
    """

    def __init__(self) -> None:
        self.num_records = 0

    def record(self, run: Callable[[], None]) -> Replay:
        self.num_records += 1
        run()
        tape = _Tape()
        with tape:
            run()
        return tape.replay


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        assert func not in HOST_SYNCS, f"{func} cannot be recorded"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FullDeviceRecorder:
    """A recorder without memory for the first `num_failures` steps it is asked to record."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.num_calls = 0

    def record(self, run: Callable[[], None]) -> Replay:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            message = "CUDA out of memory"
            raise torch.OutOfMemoryError(message)
        return ReplayRecorder().record(run)


class NoTorchOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets nothing pass but views and tensors without content, and keeps the latter."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returns = func._schema.returns
        is_view = bool(returns) and all(
            value.alias_info is not None and not value.alias_info.is_write for value in returns
        )
        is_empty = func.name().startswith("aten::empty")
        assert is_view or is_empty, f"{func} would not be replayed"
        out = func(*args, **(kwargs or {}))
        if is_empty:
            self.made.append(out)
        return out


class WatchedNativeRecorder(NativeRecorder):
    """Fails if a step calls an operator of torch's, or writes where the tape knows nothing of."""

    def record(self, run: Callable[[], None]) -> NativeReplay:
        def watched() -> None:
            with NoTorchOperators() as torch_s:
                run()
            tape = self._kernels._tape
            assert tape is not None
            noted = {address for address, _ in tape._results}
            strays = [made.shape for made in torch_s.made if made.data_ptr() not in noted | {0}]
            assert strays == [], "made without new_result"

        return super().record(watched)


class FullNativeRecorder(NativeRecorder):
    """Has no memory for any step."""

    def record(self, run: Callable[[], None]) -> NativeReplay:
        message = "can't allocate memory"
        raise MemoryError(message)
