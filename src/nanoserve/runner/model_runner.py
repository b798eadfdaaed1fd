"""`ModelRunner`: executes step plans on one device.

Owns the order layout, tensors, forward, draw. Knows nothing of requests beyond the plan
it is handed: who runs when is decided in `sched`. Decode steps go to `decode_graphs`, if
there are any.
"""

import torch
from torch import Tensor

from nanoserve.errors import InvariantError
from nanoserve.model.decoder import Decoder
from nanoserve.plan.activation_plan import SCORED_ROWS_AT_ONCE
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.sampler import sample
from nanoserve.runner.uniform import uniform
from nanoserve.sched.batch_layout import BatchLayout, ScoredRun
from nanoserve.sched.step import StepPlan, StepResult


class ModelRunner:
    """A decoder and a KV pool on one device; with `graphs`, decode steps are padded."""

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._device = device
        self._graphs = graphs

    @torch.inference_mode()
    def execute(self, step: StepPlan) -> StepResult:
        """Compute `step`, write its KV into the pool, draw the new tokens.

        Raises:
            InvariantError: Logits are not finite; names the requests.
        """
        if step.is_empty:
            return StepResult(step.step_id, (), {})
        layout = BatchLayout.from_step(step, self._pool.block_size)
        padded = None if self._graphs is None else self._graphs.run(layout)
        if padded is None:
            return self._execute_eagerly(step, layout)
        logits, execution = padded
        if len(layout.logit_rows) < len(logits):  # a prompt's chunk of one token samples nothing
            logits = logits[list(layout.logit_rows)]
        sampled = self._sample(step, layout, logits)
        return StepResult(step.step_id, sampled, {}, execution)

    def _execute_eagerly(self, step: StepPlan, layout: BatchLayout) -> StepResult:
        inputs = build_step_inputs(layout, self._device)
        hidden = self._model.hidden_states(
            inputs.token_ids, inputs.positions, self._pool.layers, inputs.attention
        )
        logits = self._model.logits(hidden.index_select(0, inputs.logit_rows))
        sampled = self._sample(step, layout, logits)
        scores = {
            step.scheduled[run.request_index].request_id: self._score(hidden, run)
            for run in layout.scored
        }
        return StepResult(step.step_id, sampled, scores)

    def _sample(
        self, step: StepPlan, layout: BatchLayout, logits: Tensor
    ) -> tuple[int | None, ...]:
        """Draw a token for each request that samples; `logits` has a row for each of them."""
        new_tokens: list[int | None] = [None] * len(step.scheduled)
        if not layout.sampling_requests:
            return tuple(new_tokens)
        requests = [step.scheduled[index] for index in layout.sampling_requests]
        outcome = sample(
            logits,
            [request.sampling for request in requests],
            [uniform(request.seed, request.context_len) for request in requests],
        )
        _check_finite([requests[row].request_id for row in outcome.broken_rows])
        for index, token_id in zip(layout.sampling_requests, outcome.token_ids, strict=True):
            new_tokens[index] = token_id
        return tuple(new_tokens)

    def _score(self, hidden: Tensor, run: ScoredRun) -> tuple[float, ...]:
        """Return the log-probability of each of the run's tokens, a few rows at a time."""
        rows = hidden[run.first_row : run.first_row + len(run.token_ids)]
        targets = torch.tensor(run.token_ids, device=hidden.device)[:, None]
        scores: list[float] = []
        for some_rows, some_targets in zip(
            rows.split(SCORED_ROWS_AT_ONCE), targets.split(SCORED_ROWS_AT_ONCE), strict=True
        ):
            scores.extend(self._score_rows(some_rows, some_targets))
        return tuple(scores)

    def _score_rows(self, rows: Tensor, targets: Tensor) -> list[float]:
        """A function of its own, so that nothing of these rows lives on with the next ones."""
        logprobs = self._model.logits(rows).log_softmax(dim=-1)
        return logprobs.gather(-1, targets)[:, 0].tolist()


def _check_finite(broken_request_ids: list[str]) -> None:
    if broken_request_ids:
        message = (
            f"The model's logits are not finite for {', '.join(broken_request_ids)}. "
            "The weights may be damaged, or float16 has overflowed: try --dtype float32."
        )
        raise InvariantError(message)
