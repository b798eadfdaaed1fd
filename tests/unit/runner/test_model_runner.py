"""`ModelRunner` answers a step plan: tokens, scores, and errors by request."""

import pytest
import torch

from nanoserve.runner import model_runner
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import StepExecution, StepMode, StepPlan
from tests.tiny_models import (
    capture_plan,
    execute,
    generate,
    graphs_for,
    padded_runner,
    random_decoder,
    runner_for,
    scheduled,
    tiny_spec,
)

TABLE = list(range(10, 20))
RANDOM = SamplingParams(temperature=1.0, top_p=0.95)


def new_runner(num_blocks: int = 64) -> ModelRunner:
    return runner_for(random_decoder(tiny_spec()), num_blocks)


def test_an_empty_step_has_an_empty_result() -> None:
    """Nothing scheduled, nothing computed; the step id comes back."""
    result = new_runner().execute(StepPlan(7, ()))

    assert (result.step_id, result.sampled_token_ids, result.prompt_logprobs) == (7, (), {})


def test_a_step_that_finds_no_memory_can_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine fails its newest requests and serves on; a plain RuntimeError would end it."""
    decoder = random_decoder(tiny_spec())
    runner = runner_for(decoder, 64)

    def allocate(*arguments: object) -> torch.Tensor:
        return torch.empty(1 << 60, dtype=torch.uint8)

    with monkeypatch.context() as starved:
        starved.setattr(decoder, "hidden_states", allocate)
        with pytest.raises(MemoryError, match="can't allocate memory"):
            execute(runner, scheduled([1, 2, 3], [0]))

    (token_id,) = execute(runner, scheduled([1, 2, 3], [0])).sampled_token_ids
    assert token_id is not None


def test_requests_that_do_not_sample_get_no_token() -> None:
    """Tokens come in the plan's order, None for a chunk that ends inside its prompt."""
    result = execute(
        new_runner(),
        scheduled([1, 2, 3], [0], request_id="a", samples=False),
        scheduled([4, 5], [1], request_id="b"),
    )

    first, second = result.sampled_token_ids
    assert first is None
    assert second is not None


def test_a_step_of_chunks_alone_samples_nothing() -> None:
    """A step in which nobody samples returns None for each request."""
    result = execute(new_runner(), scheduled([1, 2, 3], [0], samples=False))

    assert result.sampled_token_ids == (None,)


def test_a_seeded_answer_is_the_same_alone_in_a_crowd_and_recomputed() -> None:
    """Token by token, with neighbours, or with its output prefilled again: one answer."""
    prompt, seed = [5, 6, 7, 8, 9], 1234
    alone = generate(new_runner(), prompt, 12, TABLE, sampling=RANDOM, seed=seed)

    runner, crowd = new_runner(), list(prompt)
    for step in range(12):
        done = 0 if step in (0, 6) else len(crowd) - 1  # preempted after six tokens
        result = execute(
            runner,
            scheduled([step], range(30, 40), num_computed_tokens=step, request_id="b"),
            scheduled(
                crowd[done:],
                TABLE,
                num_computed_tokens=done,
                request_id="a",
                sampling=RANDOM,
                seed=seed,
            ),
        )
        token = result.sampled_token_ids[1]
        assert token is not None
        crowd.append(token)

    assert crowd[len(prompt) :] == alone
    assert len(set(alone)) > 3


def test_different_seeds_give_different_answers() -> None:
    """The seed decides the draw."""
    answers = {
        tuple(generate(new_runner(), [5, 6], 8, TABLE, sampling=RANDOM, seed=seed))
        for seed in range(4)
    }

    assert len(answers) == 4


def test_prompt_scores_are_log_probabilities_whole_or_chunked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores are the log-softmax of the token that follows; chunks and batches agree."""
    monkeypatch.setattr(model_runner, "SCORED_ROWS_AT_ONCE", 3)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    whole = execute(
        new_runner(), scheduled(prompt, TABLE, scored_token_ids=prompt[1:])
    ).prompt_logprobs["a"]
    runner = new_runner()
    first = execute(
        runner, scheduled(prompt[:4], TABLE, scored_token_ids=prompt[1:5], samples=False)
    )
    second = execute(
        runner, scheduled(prompt[4:], TABLE, num_computed_tokens=4, scored_token_ids=prompt[5:])
    )

    chunked = first.prompt_logprobs["a"] + second.prompt_logprobs["a"]

    assert len(whole) == len(prompt) - 1
    assert [score.token_id for score in whole] == prompt[1:]
    scores = [score.logprob for score in whole]
    assert all(score < 0 for score in scores)
    assert [score.logprob for score in chunked] == pytest.approx(scores, abs=1e-4)


def test_prompt_scores_name_as_many_alternatives_as_asked_for() -> None:
    """Each scored token comes with the likeliest ones of its place, likeliest first."""
    sampling = SamplingParams(temperature=0.0, num_prompt_logprobs=3)

    result = execute(
        new_runner(), scheduled([3, 1], TABLE, sampling=sampling, scored_token_ids=[1, 4])
    )

    scores = result.prompt_logprobs["a"]
    assert [len(score.top) for score in scores] == [3, 3]
    assert scores[1].top[0][0] == result.sampled_token_ids[0]
    assert all(list(s.top) == sorted(s.top, key=lambda entry: -entry[1]) for s in scores)


def test_new_tokens_come_with_their_logprobs() -> None:
    """Who asks is told how likely the new token was."""
    sampling = SamplingParams(temperature=0.0, num_logprobs=2)

    result = execute(
        new_runner(),
        scheduled([1, 2, 3], [0], request_id="a", samples=False),
        scheduled([4, 5], [1], request_id="b"),
        scheduled([6, 7], [2], request_id="c", sampling=sampling),
    )

    assert result.logprobs.keys() == {"c"}
    assert result.logprobs["c"].token_id == result.sampled_token_ids[2]
    assert result.logprobs["c"].top[0] == (
        result.logprobs["c"].token_id,
        result.logprobs["c"].logprob,
    )


def test_scores_of_all_continuations_sum_to_one() -> None:
    """The scores of every possible next token are one probability distribution."""
    runner = new_runner()
    scores = [
        execute(runner, scheduled([8, token], TABLE, scored_token_ids=[token], samples=False))
        .prompt_logprobs["a"][0]
        .logprob
        for token in range(97)
    ]

    assert float(torch.tensor(scores).exp().sum()) == pytest.approx(1.0, abs=1e-4)


def test_logits_that_are_not_finite_fail_their_request_alone() -> None:
    """NaN weights cost the request that meets them its token or scores, and nobody else."""
    decoder = random_decoder(tiny_spec())
    decoder.embed_tokens.weight[42] = float("nan")
    runner = runner_for(decoder)

    result = execute(
        runner,
        scheduled([1, 2], [0], request_id="a"),
        scheduled([42, 43], [1], request_id="b"),
        scheduled([42, 3], [2], request_id="c", samples=False, scored_token_ids=[3, 4]),
    )

    assert result.sampled_token_ids[0] is not None
    assert result.sampled_token_ids[1:] == (None, None)
    assert result.failed.keys() == {"b", "c"}
    assert "float32" in result.failed["b"]
    assert result.prompt_logprobs == {}


def test_a_request_that_cannot_be_scored_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompt's scores may be broken where the logits of its last token are not."""
    monkeypatch.setattr(ModelRunner, "_score", lambda *_: None)
    sampling = SamplingParams(num_logprobs=0, num_prompt_logprobs=0)

    result = execute(
        new_runner(), scheduled([3, 1], TABLE, sampling=sampling, scored_token_ids=[1])
    )

    assert result.sampled_token_ids == (None,)
    assert (result.prompt_logprobs, result.logprobs) == ({}, {})
    assert result.failed.keys() == {"a"}


def test_a_broken_request_leaves_nothing_behind() -> None:
    """Blocks that held NaN serve the next request as if they were new."""
    decoder = random_decoder(tiny_spec())
    clean = generate(runner_for(decoder), [5, 6, 7], 6, TABLE)
    runner = runner_for(decoder)
    healthy = decoder.embed_tokens.weight[42].clone()
    decoder.embed_tokens.weight[42] = float("nan")
    assert execute(runner, scheduled([42] * 30, TABLE)).failed.keys() == {"a"}
    decoder.embed_tokens.weight[42] = healthy

    assert generate(runner, [5, 6, 7], 6, TABLE) == clean


def new_padded_runner() -> ModelRunner:
    decoder = random_decoder(tiny_spec())
    return padded_runner(decoder, graphs_for(decoder, capture_plan()))


def test_decodes_are_padded_and_prefills_are_not() -> None:
    """A result says how its step ran; the tokens are those of the eager path."""
    prompt = scheduled([5, 6, 7], TABLE)
    decode = scheduled([8], TABLE, num_computed_tokens=3)
    others = [scheduled([4], [30 + row], request_id=str(row)) for row in range(2)]
    runner = new_padded_runner()

    prefill, padded = execute(runner, prompt), execute(runner, decode, *others)

    assert prefill.execution == StepExecution(StepMode.EAGER)
    assert padded.execution == StepExecution(StepMode.BUCKETED, padded_rows=1)
    eager = new_runner()
    execute(eager, prompt)
    assert padded.sampled_token_ids == execute(eager, decode, *others).sampled_token_ids


def test_a_padded_chunk_of_one_token_samples_nothing() -> None:
    """Beside a decode, the last row but one of a prompt gets None, in either order."""
    decode = scheduled([9], TABLE, num_computed_tokens=3, request_id="a")
    chunk = scheduled([4], [30], request_id="b", samples=False)
    (alone,) = execute(new_padded_runner(), decode).sampled_token_ids
    runner = new_padded_runner()

    assert execute(runner, decode, chunk).sampled_token_ids == (alone, None)
    assert execute(runner, chunk, decode).sampled_token_ids == (None, alone)
    assert execute(runner, chunk).sampled_token_ids == (None,)


def test_a_scored_prompt_token_runs_eagerly_and_is_scored() -> None:
    """Scores need hidden states that a padded step does not keep."""
    part = scheduled([8], [3], scored_token_ids=[9], samples=False)

    result = execute(new_padded_runner(), part)

    assert result.execution.mode is StepMode.EAGER
    assert result.prompt_logprobs == execute(new_runner(), part).prompt_logprobs
