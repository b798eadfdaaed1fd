"""`compile_layers`: torch.compile for everything in a layer but attention.

Attention stays as it is: it writes the pool in place and gathers by tables. What lies before
and behind it depends on nothing but the number of tokens, so two pieces of code, compiled
for any number, serve every layer.
"""

import torch

from nanoserve.errors import OptionError
from nanoserve.kernels.kernel_build import COMPILERS, find_compiler
from nanoserve.model.decoder import Decoder


def check_compiler() -> None:
    """Refuse a machine that cannot compile.

    Raises:
        OptionError: It has no C++ compiler, which torch.compile needs on every device.
    """
    if find_compiler() is None:
        message = (
            "--compile needs a C++ compiler, and none of "
            f"{', '.join(COMPILERS)} is on the PATH. Install one, or leave --compile out."
        )
        raise OptionError(message)


def compile_layers(model: Decoder) -> None:
    """Let torch compile the layers of `model` at their first step, which takes seconds.

    Call after the weights are in, and on weights that are not packed: the compiler cannot
    look into oneDNN's layout.

    Raises:
        OptionError: This machine cannot compile; nothing was changed.
    """
    check_compiler()
    for layer in model.layers:
        for name in ("before_attention", "after_attention"):
            compiled = torch.compile(getattr(layer, name), dynamic=True, fullgraph=True)
            setattr(layer, name, compiled)
