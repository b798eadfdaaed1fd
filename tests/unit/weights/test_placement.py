"""Parameters get memory once per storage."""

from dataclasses import replace

import torch
from torch import nn

from nanoserve.weights.placement import place_weights
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in


def test_a_tied_head_stays_one_storage() -> None:
    """The head of a tied model is the embedding after placing, and is counted once."""
    model = build_stand_in(replace(TINY_LLAMA, tie_word_embeddings=True))

    num_bytes = place_weights(model, "cpu", torch.bfloat16)

    head, embedding = (
        model.get_parameter("lm_head.weight"),
        model.get_parameter("embed_tokens.weight"),
    )
    assert head.data_ptr() == embedding.data_ptr()
    assert num_bytes == 2 * sum(parameter.numel() for parameter in model.parameters())
    assert not head.is_meta
    assert head.dtype == torch.bfloat16
    assert not head.requires_grad


def test_an_untied_head_has_its_own_storage() -> None:
    """The head of an untied model costs vocabulary times width more."""
    tied = build_stand_in(replace(TINY_LLAMA, tie_word_embeddings=True))
    untied = build_stand_in(TINY_LLAMA)

    extra_bytes = place_weights(untied, "cpu", torch.float32) - place_weights(
        tied, "cpu", torch.float32
    )

    assert extra_bytes == 4 * TINY_LLAMA.vocab_size * TINY_LLAMA.hidden_size


def test_values_on_a_device_are_kept() -> None:
    """A parameter that has values keeps them when its dtype changes."""
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()

    num_bytes = place_weights(model, "cpu", torch.float64)

    assert num_bytes == 8 * (6 + 2)
    assert torch.equal(model.weight, before.double())


def test_two_parameters_over_one_storage_stay_tied() -> None:
    """Two Parameter objects that show the same bytes are one storage afterwards."""
    model = nn.Module()
    model.first = nn.Parameter(torch.ones(4))
    model.second = nn.Parameter(model.first.detach())

    num_bytes = place_weights(model, "cpu", torch.float16)

    assert model.first.data_ptr() == model.second.data_ptr()
    assert num_bytes == 8


def test_placing_twice_changes_nothing() -> None:
    """A placed model keeps its storages when it is placed again."""
    model = build_stand_in(TINY_LLAMA)
    num_bytes = place_weights(model, "cpu", torch.float32)
    before = [parameter.data_ptr() for parameter in model.parameters()]

    again = place_weights(model, "cpu", torch.float32)

    assert again == num_bytes
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
