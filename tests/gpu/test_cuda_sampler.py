"""The sampler on a CUDA device: the draws of the slow reference."""

import pytest
import torch

from nanoserve.runner.sampler import Sampler
from tests.property.test_sampler_equals_reference import MIN_MARGIN, random_batch
from tests.sampling_reference import ReferenceSampler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_cuda_draws_as_the_reference() -> None:
    """Batches of every kind of parameters get the reference's tokens and failures."""
    for seed in range(100):
        logits, scheduled = random_batch(seed)

        sampled = Sampler().sample(torch.tensor(logits, device="cuda"), scheduled)

        for row, request in enumerate(scheduled):
            reference = ReferenceSampler(logits[row], request)
            expected = reference.sample()
            assert (request.request_id in sampled.failed) == (expected is None)
            if reference.margin > MIN_MARGIN:
                assert sampled.token_ids[row] == expected
