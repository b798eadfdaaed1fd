"""`DecodeGraphs`: decode steps padded to a list of shapes, recorded once and replayed.

Owns which shape a step gets, the recorded graphs and their eviction. Knows nothing of the
list's making (see `plan.capture_plan`), of how a graph is recorded (see `graph_recorder`)
or of padding (see `decode_buffers`).

```
bucketed    load, run the padded step
captured    load, replay the shape's graph; record it first if there is none (late)
```
"""

import logging
from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor

from nanoserve.model.decoder import Decoder
from nanoserve.plan.boot_checks import BufferShape
from nanoserve.plan.capture_axes import WIDTH_BUCKET
from nanoserve.plan.capture_plan import CapturePlan
from nanoserve.runner.decode_buffers import Shape, StaticBuffers
from nanoserve.runner.graph_recorder import GraphRecorder, Replay
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.out_of_memory import OUT_OF_MEMORY
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepExecution, StepMode
from nanoserve.units import round_up

logger = logging.getLogger(__name__)


class DecodeGraphs:
    """Runs decode steps on static buffers, from the embedding to the logits of every row.

    A step wider than the plan's ceiling gets the next multiple of `WIDTH_BUCKET`; one with
    more rows than the plan's is left to the eager path, and so is one at least as large as
    a shape that the device had no memory for.

    Attributes:
        plan: The shapes to record before serving, and the most graphs held at once.
        pool: What the steps read and write.
        has_served: Whether a step has run that was not a warm one.
    """

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        plan: CapturePlan,
        max_model_len: int,
        recorder: GraphRecorder | None = None,
    ) -> None:
        """Allocate the buffers.

        Args:
            model: Placed and loaded: a recorded step keeps its addresses.
            pool: Allocated, with a sink block.
            plan: The shapes.
            max_model_len: Longest context served, in tokens; may pass the plan's ceiling.
            recorder: None runs every step padded and records nothing.
        """
        self.plan = plan
        self.pool = pool
        self.has_served = False
        self._model = model
        self._recorder = recorder
        max_width = max(plan.max_width, round_up(max_model_len, WIDTH_BUCKET))
        self._buffers = StaticBuffers(pool, (plan.max_rows, max_width), model.spec.vocab_size)
        self._replays: OrderedDict[Shape, Replay] = OrderedDict()  # least recently replayed first
        self._dropped: list[Shape] = []

    @property
    def recorded(self) -> tuple[Shape, ...]:
        """Shapes whose graph is held, the one replayed least recently first."""
        return tuple(self._replays)

    @property
    def buffer_shape(self) -> BufferShape:
        """What the buffers of padded steps were made for."""
        return self._buffers.shape

    @property
    def logits_buffer(self) -> Tensor:
        """float32 [R_max, V], where a step leaves its logits; others may use it in between."""
        return self._buffers.logits

    @torch.inference_mode()
    def run(self, layout: BatchLayout) -> tuple[Tensor, StepExecution] | None:
        """Run one step.

        Returns:
            The logits, float32 [R, V], one row for each request of the layout, valid until
            the next step; and how the step ran. None if it has to run eagerly, which is
            right even where it was tried here: a step that is run again writes the same.
        """
        self.has_served = True
        shape = self._shape_for(layout)
        if shape is None:
            return None
        self._load(layout, shape)
        outcome = self._execute(shape)
        if outcome is None:
            return None
        mode, num_evicted = outcome
        num_rows = len(layout.context_lens)
        logits = self._buffers.step(shape).logits[:num_rows]
        return logits, StepExecution(mode, shape[0] - num_rows, num_evicted)

    @torch.inference_mode()
    def warm(self, shape: Shape) -> bool:
        """Run `shape` on padding alone, and record it if there is a recorder.

        Returns:
            False if the device has no memory for it. It is dropped: a step that would need
            it, or a larger one, runs eagerly.
        """
        self._load(None, shape)
        if self._recorder is not None:
            return self._record(shape, self._recorder)
        try:
            self._compute(shape)
        except OUT_OF_MEMORY as error:
            self._drop(shape, error)
            return False
        return True

    def _load(self, layout: BatchLayout | None, shape: Shape) -> None:
        rows = self._buffers.load(layout, shape)
        self._model.schedule(self._buffers.step(shape).attention, rows)

    def _shape_for(self, layout: BatchLayout) -> Shape | None:
        num_rows = len(layout.context_lens)
        if layout.num_decodes != num_rows or layout.scored:
            return None
        context_len = max(layout.context_lens)
        bucket = self.plan.bucket(num_rows, min(context_len, self.plan.max_width))
        if bucket is None:
            return None
        shape = (bucket[0], max(bucket[1], round_up(context_len, WIDTH_BUCKET)))
        is_dropped = any(shape[0] >= rows and shape[1] >= width for rows, width in self._dropped)
        return None if is_dropped else shape

    def _execute(self, shape: Shape) -> tuple[StepMode, int] | None:
        """Run what was loaded; returns how, and how many graphs that cost."""
        if self._recorder is None:
            self._compute(shape)
            return StepMode.BUCKETED, 0
        if shape in self._replays:
            self._replays.move_to_end(shape)
            self._replays[shape]()
            return StepMode.REPLAYED, 0
        if not self._record(shape, self._recorder):
            return None
        num_evicted = max(0, len(self._replays) - self.plan.limit)
        for _ in range(num_evicted):
            self._replays.popitem(last=False)
        self._replays[shape]()
        return StepMode.LATE, num_evicted

    def _record(self, shape: Shape, recorder: GraphRecorder) -> bool:
        try:
            self._replays[shape] = recorder.record(partial(self._compute, shape))
        except OUT_OF_MEMORY as error:
            self._drop(shape, error)
            return False
        return True

    def _drop(self, shape: Shape, error: Exception) -> None:
        self._dropped.append(shape)
        logger.warning(
            "No memory for a decode step of %d rows and %d tokens of context, which runs eagerly "
            "from now on, as do larger ones: %s",
            *shape,
            error,
        )

    def _compute(self, shape: Shape) -> None:
        """From the loaded inputs to the logits, all on static buffers."""
        step = self._buffers.step(shape)
        hidden = self._model.hidden_states(
            step.token_ids, step.positions, self.pool.layers, step.attention
        )
        self._model.logits(hidden, step.logits)
