"""`ModelRunner`: executes step plans on one device.

Owns the order layout, tensors, forward, draw. Knows nothing of requests beyond the plan
it is handed: who runs when is decided in `sched`. Decode steps go to `decode_graphs`, if
there are any.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.model.decoder import Decoder
from nanoserve.plan.activation_plan import SCORED_ROWS_AT_ONCE
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.logprobs import token_logprobs
from nanoserve.runner.mixed_graphs import MixedGraphs
from nanoserve.runner.native_row_max import NativeRowMax
from nanoserve.runner.sampler import NOT_FINITE, SampledTokens, Sampler
from nanoserve.sched.batch_layout import BatchLayout, ScoredRun
from nanoserve.sched.step import StepExecution, StepMode, StepPlan, StepResult, TokenLogprobs


class ModelRunner:
    """A decoder and a KV pool on one device.

    With `graphs`, decode steps are padded; with native operators, greedy draws are faster.
    """

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
        kernels: KernelLibrary | None = None,
        mixed: MixedGraphs | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._device = device
        self._sampler = Sampler(None if kernels is None else NativeRowMax(kernels))
        self._graphs = graphs
        self._mixed = mixed

    @torch.inference_mode()
    def execute(self, step: StepPlan) -> StepResult:
        """Compute `step`, write its KV into the pool, draw the new tokens.

        A request whose logits are not finite fails, and no other.
        """
        if step.is_empty:
            return StepResult(step.step_id, (), {})
        layout = BatchLayout.from_step(step, self._pool.block_size)
        recorded = self._run_recorded(layout)
        if recorded is None:
            return self._execute_eagerly(step, layout)
        logits, execution = recorded
        if len(layout.logit_rows) < len(logits):  # a prompt's chunk of one token samples nothing
            logits = logits[list(layout.logit_rows)]
        sampled = self._sample(step, layout, logits)
        return StepResult(
            step.step_id, sampled.token_ids, {}, execution, sampled.logprobs, sampled.failed
        )

    def _run_recorded(self, layout: BatchLayout) -> tuple[Tensor, StepExecution] | None:
        """Run the step without Python between its operators, if there is a way."""
        if self._graphs is not None and (found := self._graphs.run(layout)) is not None:
            return found
        if self._mixed is not None and (logits := self._mixed.run(layout)) is not None:
            return logits, StepExecution(StepMode.REPLAYED)
        return None

    def _execute_eagerly(self, step: StepPlan, layout: BatchLayout) -> StepResult:
        inputs = build_step_inputs(layout, self._device)
        hidden = self._model.hidden_states(
            inputs.token_ids, inputs.positions, self._pool.layers, inputs.attention
        )
        logits = self._model.logits(self._model.pick_rows(hidden, inputs.logit_rows))
        sampled = self._sample(step, layout, logits)
        scores, unscored = self._score_all(step, layout, hidden)
        return _join(step, sampled, scores, unscored)

    def _sample(self, step: StepPlan, layout: BatchLayout, logits: Tensor) -> SampledTokens:
        """Draw a token for each request that samples; `logits` has a row for each of them.

        Returns:
            Tokens in the plan's order; None for a request that does not sample or failed.
        """
        new_tokens: list[int | None] = [None] * len(step.scheduled)
        if not layout.sampling_requests:
            return SampledTokens(tuple(new_tokens), {}, {})
        requests = [step.scheduled[index] for index in layout.sampling_requests]
        sampled = self._sampler.sample(logits, requests)
        for index, token_id in zip(layout.sampling_requests, sampled.token_ids, strict=True):
            new_tokens[index] = token_id
        return replace(sampled, token_ids=tuple(new_tokens))

    def _score_all(
        self, step: StepPlan, layout: BatchLayout, hidden: Tensor
    ) -> tuple[dict[str, tuple[TokenLogprobs, ...]], dict[str, str]]:
        """Score each request that asks for it; return scores and problems by request id."""
        scores: dict[str, tuple[TokenLogprobs, ...]] = {}
        failed: dict[str, str] = {}
        for run in layout.scored:
            request = step.scheduled[run.request_index]
            run_scores = self._score(hidden, run, request.sampling.num_prompt_logprobs or 0)
            if run_scores is None:
                failed[request.request_id] = NOT_FINITE
            else:
                scores[request.request_id] = run_scores
        return scores, failed

    def _score(
        self, hidden: Tensor, run: ScoredRun, num_top: int
    ) -> tuple[TokenLogprobs, ...] | None:
        """Score each of the run's tokens, a few rows at a time; None if logits are not finite."""
        rows = hidden[run.first_row : run.first_row + len(run.token_ids)]
        targets = torch.tensor(run.token_ids, device=hidden.device)
        scores: list[TokenLogprobs] = []
        for some_rows, some_targets in zip(
            rows.split(SCORED_ROWS_AT_ONCE), targets.split(SCORED_ROWS_AT_ONCE), strict=True
        ):
            found = self._score_rows(some_rows, some_targets, num_top)
            if found is None:
                return None
            scores.extend(found)
        return tuple(scores)

    def _score_rows(
        self, rows: Tensor, targets: Tensor, num_top: int
    ) -> list[TokenLogprobs] | None:
        """A function of its own, so that nothing of these rows lives on with the next ones."""
        logits = self._model.logits(rows)
        scores = token_logprobs(logits, targets, [num_top] * len(targets))
        found = [score for score in scores if score is not None]
        return found if len(found) == len(scores) else None


def _join(
    step: StepPlan,
    sampled: SampledTokens,
    scores: dict[str, tuple[TokenLogprobs, ...]],
    unscored: dict[str, str],
) -> StepResult:
    """Return the result of a step; a request that could not be scored gets no token either."""
    token_ids = tuple(
        None if request.request_id in unscored else token_id
        for request, token_id in zip(step.scheduled, sampled.token_ids, strict=True)
    )
    logprobs = {name: found for name, found in sampled.logprobs.items() if name not in unscored}
    failed = sampled.failed | unscored
    return StepResult(step.step_id, token_ids, scores, logprobs=logprobs, failed=failed)
