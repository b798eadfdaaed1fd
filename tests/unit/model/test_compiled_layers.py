"""`compile_layers` changes how fast a layer is, not what it computes."""

import shutil
from typing import Any

import pytest
import torch

from nanoserve.errors import OptionError
from nanoserve.model.compiled_layers import compile_layers
from tests.tiny_models import execute, generate, random_decoder, runner_for, scheduled, tiny_spec

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
@needs_compiler
def test_compiled_layers_give_the_eager_tokens() -> None:
    """Prefills of several lengths, decodes alone and in a crowd give the same tokens."""
    compiled = random_decoder(tiny_spec(num_layers=3, has_qk_norm=True))
    eager = random_decoder(tiny_spec(num_layers=3, has_qk_norm=True))

    compile_layers(compiled)

    for prompt in ([1, 2, 3, 4, 5], [9, 8, 7], list(range(20))):
        tokens = generate(runner_for(compiled), prompt, 10, range(10))
        assert tokens == generate(runner_for(eager), prompt, 10, range(10))
    crowd = [scheduled([row], [row], request_id=str(row)) for row in range(6)]
    ours, theirs = execute(runner_for(compiled), *crowd), execute(runner_for(eager), *crowd)
    assert ours.sampled_token_ids == theirs.sampled_token_ids


def test_layers_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments a layer go to the compiler, whole and for any number of tokens."""
    calls: list[dict[str, Any]] = []

    def pretend(function: Any, **options: Any) -> Any:
        calls.append(options)
        return function

    monkeypatch.setattr(torch, "compile", pretend)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    compile_layers(random_decoder(tiny_spec(num_layers=2)))

    assert calls == [{"dynamic": True, "fullgraph": True}] * 4


def test_a_machine_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the flag and what to install; nothing was changed."""
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(OptionError, match=r"--compile needs a C\+\+ compiler.*g\+\+"):
        compile_layers(random_decoder(tiny_spec()))
