"""How llama.cpp spreads a model over GPUs: whole layers, keys and values with them.

That is `--split-mode layer`, its default. The rows and tensors of a layer can be divided too
(`row`, `tensor`); those modes are not planned.
"""

from nanoserve.errors import OptionError
from nanoserve.plan.sharding import StageWeights
from nanoserve.spec.model_shape import ModelShape, Weight


def split_layers(shape: ModelShape, num_gpus: int, *, on_host: bool = False) -> list[StageWeights]:
    """Divide the layers among equal GPUs as llama.cpp does; the one with most decides what fits.

    The output, norm and head, counts as one layer more, the last. Layer i of L goes to GPU
    `i * num_gpus // (L + 1)`. The embedding stays in the host's memory, unless all is there; a
    head that is tied to it has a copy of its own.

    Args:
        shape: The model.
        num_gpus: GPUs of as much memory each.
        on_host: Whether the device is the host.

    Raises:
        OptionError: There are more GPUs than layers.

    Source: llama.cpp, llama-model.cpp, load_tensors: get_layer_buft_list, dev_input, dev_output;
    with `--tensor-split 1,1`, or as much free on each.
    Example: 32 layers on 2 GPUs are 17 on the first, and 15 and the output on the last.
    """
    num_layers = len(shape.layers)
    if not 1 <= num_gpus <= num_layers:
        message = (
            f"{num_gpus} GPUs are asked for, and llama.cpp gives each whole layers of the "
            f"{num_layers} there are. Plan at most {num_layers}, or --tp 1 for copies."
        )
        raise OptionError(message)
    owners = [layer * num_gpus // (num_layers + 1) for layer in range(num_layers)]
    stages, first = [], 0
    for number in range(num_gpus):
        layers = shape.layers[first : first + owners.count(number)]
        outside = _output(shape) if number == num_gpus - 1 else []
        if number == 0:
            outside = [*_others(shape, on_host=on_host), *outside]
        stages.append(StageWeights(first, len(layers), tuple(outside), layers))
        first += len(layers)
    return stages


def _output(shape: ModelShape) -> list[Weight]:
    groups = {"head", "norms"} | ({"embedding"} if shape.tie_word_embeddings else set())
    return [weight for weight in shape.weights if weight.group in groups]


def _others(shape: ModelShape, *, on_host: bool) -> list[Weight]:
    """Return what is neither output nor input: towers and the like, with the first layers."""
    held = {"head", "norms"}
    if not on_host or shape.tie_word_embeddings:  # there is one copy of a tied table on the host
        held.add("embedding")
    return [weight for weight in shape.weights if weight.group not in held]
