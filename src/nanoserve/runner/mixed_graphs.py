"""`MixedGraphs`: steps that read prompts, recorded when their shape is met, and replayed.

For recorders to which a recording is no event, so on a CPU: there a step that is recorded and
then run as one program takes less than one whose operators are called one by one. A long
prompt beside running answers is read in pieces of one size, so that many steps in turn have
the very same shape. No padding: a shape is a step's numbers of tokens, requests and wanted
logits.
"""

import logging
from array import array
from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs
from nanoserve.model.decoder import Decoder
from nanoserve.runner.decode_graphs import OUT_OF_MEMORY
from nanoserve.runner.graph_recorder import GraphRecorder, Replay
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepExecution, StepMode
from nanoserve.units import ceil_div

logger = logging.getLogger(__name__)

_MAX_SHAPES = 32  # that are remembered


class MixedShape(NamedTuple):
    """What a recorded step depends on."""

    num_tokens: int
    num_requests: int
    num_logits: int


class MixedGraphs:
    """Runs steps of prompts and decodes on static buffers."""

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        logits: Tensor,
        max_model_len: int,
        max_tokens: int,
        recorder: GraphRecorder,
    ) -> None:
        """Allocate the buffers.

        Args:
            model: Placed and loaded: a recorded step keeps its addresses.
            pool: Allocated.
            logits: float32 [R_max, V] for the results of a step of up to `R_max` requests.
            max_model_len: Longest context served, in tokens.
            max_tokens: Of a step that is recorded.
            recorder: Records in no time worth mentioning.
        """
        self._model = model
        self._pool = pool
        self._logits = logits
        self._max_model_len = max_model_len
        self._recorder = recorder
        max_requests = len(logits)
        # token ids, positions and slots, and the rows whose logits are wanted
        self._columns = torch.zeros(4, max_tokens, dtype=torch.int64)
        self._lengths = torch.zeros(2, max_requests + 1, dtype=torch.int32)
        table_shape = (max_requests, ceil_div(max_model_len, pool.block_size))
        self._block_tables = torch.zeros(table_shape, dtype=torch.int32)
        self._replays: OrderedDict[MixedShape, Replay] = OrderedDict()  # replayed last at the end
        self._max_tokens = max_tokens

    @torch.inference_mode()
    def run(self, layout: BatchLayout) -> tuple[Tensor, StepExecution] | None:
        """Run one step, if it is of a kind that is recorded.

        Returns:
            The wanted logits, float32, valid until the next step; and whether their shape was
            recorded earlier or in this step. None if it has to run eagerly.
        """
        shape = MixedShape(len(layout.token_ids), len(layout.context_lens), len(layout.logit_rows))
        is_small = shape.num_tokens <= self._max_tokens and shape.num_requests <= len(self._logits)
        has_prompts = layout.num_decodes < shape.num_requests
        if layout.scored or not has_prompts or not is_small:
            return None
        execution = self._find_or_record(shape)
        if execution is None:
            return None
        self._load(layout, shape)
        self._replays[shape]()
        return self._logits[: shape.num_logits], execution

    def _find_or_record(self, shape: MixedShape) -> StepExecution | None:
        """See to it that the shape is held, as the one met last; return what that took."""
        if shape in self._replays:
            self._replays.move_to_end(shape)
            return StepExecution(StepMode.REPLAYED)
        try:
            self._replays[shape] = self._recorder.record(partial(self._compute, shape))
        except OUT_OF_MEMORY as error:
            self._max_tokens = shape.num_tokens - 1
            logger.warning(
                "No memory to record a step of %d tokens; such steps and larger ones with "
                "prompts run eagerly from now on: %s",
                shape.num_tokens,
                error,
            )
            return None
        num_evicted = max(0, len(self._replays) - _MAX_SHAPES)
        for _ in range(num_evicted):
            self._replays.popitem(last=False)
        return StepExecution(StepMode.LATE, num_evicted=num_evicted)

    def _load(self, layout: BatchLayout, shape: MixedShape) -> None:
        """Copy a step in."""
        columns = (layout.token_ids, layout.positions, layout.slot_mapping, layout.logit_rows)
        for column, values in zip(self._columns, columns, strict=True):
            _fill(column, array("q", values))
        _fill(self._lengths[0], array("i", layout.context_lens))
        _fill(self._lengths[1], array("i", layout.query_starts))
        for row, table in zip(self._block_tables, layout.block_tables, strict=False):
            _fill(row, array("i", table))

    def _compute(self, shape: MixedShape) -> None:
        """From the loaded inputs to the wanted logits, all on static buffers."""
        num_tokens, num_requests, num_logits = shape
        token_ids, positions, slots = self._columns[:3, :num_tokens]
        inputs = AttentionInputs(
            slot_mapping=slots,
            block_tables=self._block_tables[:num_requests],
            context_lens=self._lengths[0, :num_requests],
            query_starts=self._lengths[1, : num_requests + 1],
            fresh_blocks=slots[:0],
            query_lens=(),
            host_context_lens=(self._max_model_len,),
            num_decodes=0,
            block_size=self._pool.block_size,
        )
        hidden = self._model.hidden_states(token_ids, positions, self._pool.layers, inputs)
        if num_logits:
            wanted = self._model.pick_rows(hidden, self._columns[3, :num_logits])
            self._model.logits(wanted, self._logits[:num_logits])


def _fill(to: Tensor, values: "array[int]") -> None:
    if values:
        to[: len(values)] = torch.frombuffer(values, dtype=to.dtype)
