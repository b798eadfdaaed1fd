"""`MixedGraphs`: steps that read prompts, recorded once and replayed with as many rows as there are.

For native recorders, so on a CPU: there a step that is run as one program takes less than one
whose operators are called one by one. Prompts come in all lengths, and beside running answers
their pieces change with what those cost: to record each step that was not met before took as
long as a token of theirs. So the largest step is recorded, and run with the rows of each.
"""

import logging
from array import array

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs
from nanoserve.kernels.program_rows import StepRows
from nanoserve.model.decoder import Decoder
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.native_recorder import NativeRecorder, RowsReplay
from nanoserve.runner.out_of_memory import OUT_OF_MEMORY
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.units import ceil_div

logger = logging.getLogger(__name__)


class MixedGraphs:
    """Runs steps of prompts and decodes on static buffers."""

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        logits: Tensor,
        max_model_len: int,
        max_tokens: int,
        recorder: NativeRecorder,
    ) -> None:
        """Allocate the buffers, and record the largest step on them.

        Args:
            model: Placed and loaded: a recorded step keeps its addresses.
            pool: Allocated.
            logits: float32 [R_max, V] for the results of a step of up to `R_max` requests.
            max_model_len: Longest context served, in tokens.
            max_tokens: Of a step that is recorded.
            recorder: Takes the step down; without memory for it, all run eagerly.
        """
        self._model = model
        self._pool = pool
        self._logits = logits
        self._max_model_len = max_model_len
        max_requests = len(logits)
        # token ids, positions and slots, and the rows whose logits are wanted
        self._columns = torch.zeros(4, max_tokens, dtype=torch.int64)
        self._lengths = torch.zeros(2, max_requests + 1, dtype=torch.int32)
        table_shape = (max_requests, ceil_div(max_model_len, pool.block_size))
        self._block_tables = torch.zeros(table_shape, dtype=torch.int32)
        self._most = StepRows(max_tokens, max_requests, max_requests)
        self._replay = self._record(recorder)

    @torch.inference_mode()
    def run(self, layout: BatchLayout) -> Tensor | None:
        """Run one step, if it is of a kind that is recorded.

        Returns:
            The wanted logits, float32, valid until the next step; None if it has to run
            eagerly.
        """
        rows = StepRows(len(layout.token_ids), len(layout.context_lens), len(layout.logit_rows))
        fits = all(count <= most for count, most in zip(rows, self._most, strict=True))
        has_prompts = layout.num_decodes < rows.num_requests
        if self._replay is None or layout.scored or not has_prompts or not fits:
            return None
        self._load(layout)
        self._replay(rows)
        return self._logits[: rows.num_logits]

    @torch.inference_mode()
    def _record(self, recorder: NativeRecorder) -> RowsReplay | None:
        try:
            return recorder.record_rows(self._hidden_states, self._compute_logits, self._most)
        except OUT_OF_MEMORY as error:
            logger.warning("No memory to record steps with prompts; they run eagerly: %s", error)
            return None

    def _load(self, layout: BatchLayout) -> None:
        """Copy a step in."""
        columns = (layout.token_ids, layout.positions, layout.slot_mapping, layout.logit_rows)
        for column, values in zip(self._columns, columns, strict=True):
            _fill(column, array("q", values))
        _fill(self._lengths[0], array("i", layout.context_lens))
        _fill(self._lengths[1], array("i", layout.query_starts))
        for row, table in zip(self._block_tables, layout.block_tables, strict=False):
            _fill(row, array("i", table))

    def _hidden_states(self) -> Tensor:
        """From the loaded inputs, all of them, to the residual stream behind the last layer."""
        token_ids, positions, slots = self._columns[:3]
        inputs = AttentionInputs(
            slot_mapping=slots,
            block_tables=self._block_tables,
            context_lens=self._lengths[0, : self._most.num_requests],
            query_starts=self._lengths[1],
            fresh_blocks=slots[:0],
            query_lens=(),
            host_context_lens=(self._max_model_len,),
            num_decodes=0,
            block_size=self._pool.block_size,
        )
        return self._model.hidden_states(token_ids, positions, self._pool.layers, inputs)

    def _compute_logits(self, hidden: Tensor) -> None:
        """To the wanted logits."""
        wanted = self._model.pick_rows(hidden, self._columns[3, : self._most.num_logits])
        self._model.logits(wanted, self._logits)


def _fill(to: Tensor, values: "array[int]") -> None:
    if values:
        to[: len(values)] = torch.frombuffer(values, dtype=to.dtype)
