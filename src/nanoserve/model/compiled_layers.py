"""`compile_layers`: torch.compile for everything in a layer but attention.

Attention stays as it is: it writes the pool in place and gathers by tables. What lies before
and behind it depends on nothing but the number of tokens, so two pieces of code, compiled
for any number, serve every layer.
"""

import os
import shutil

import torch

from nanoserve.errors import OptionError
from nanoserve.model.decoder import Decoder

CPP_COMPILERS = ("g++", "clang++", "c++")


def compile_layers(model: Decoder) -> None:
    """Let torch compile the layers of `model` at their first step, which takes seconds.

    Call after the weights are in, and on weights that are not packed: the compiler cannot
    look into oneDNN's layout.

    Raises:
        OptionError: This machine has no C++ compiler.
    """
    if not any(map(shutil.which, (os.environ.get("CXX", ""), *CPP_COMPILERS))):
        message = (
            "--compile needs a C++ compiler, and none of "
            f"{', '.join(CPP_COMPILERS)} is on the PATH. Install one, or leave --compile out."
        )
        raise OptionError(message)
    for layer in model.layers:
        for name in ("before_attention", "after_attention"):
            compiled = torch.compile(getattr(layer, name), dynamic=True, fullgraph=True)
            setattr(layer, name, compiled)
