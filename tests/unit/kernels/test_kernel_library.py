"""A library is loaded only if it fits the arguments it will be called with."""

from pathlib import Path

import pytest

from nanoserve.errors import KernelError
from nanoserve.kernels import kernel_library
from nanoserve.kernels.kernel_library import KernelLibrary, load_kernels
from nanoserve.kernels.op_args import ALL_OP_ARGS, OpArgs, dtype_code
from tests.native_kernels import native_kernels, needs_kernels


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "damaged.so"
    path.write_text("nothing")

    with pytest.raises(KernelError, match=r"damaged\.so cannot be loaded"):
        KernelLibrary(path)


@needs_kernels
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_library_that_was_cut_short_is_built_again(
    kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, rather than the death of the process, and is whole after the next load."""
    whole = native_kernels().path.read_bytes()
    path = tmp_path / "cut.so"

    def build() -> Path:
        if not path.exists():
            path.write_bytes(whole)
        return path

    monkeypatch.setattr(kernel_library, "build_kernels", build)
    path.write_bytes(whole[: int(kept * len(whole))])

    with pytest.raises(KernelError, match=r"cut\.so cannot be loaded"):
        KernelLibrary(path)
    assert load_kernels().vector_bits == native_kernels().vector_bits
    assert path.read_bytes() == whole


@needs_kernels
def test_other_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator whose arguments have another size on the other side is never called."""

    class Other(OpArgs):
        kind = 0
        _fields_ = ()

    monkeypatch.setattr(kernel_library, "ALL_OP_ARGS", (Other,))

    with pytest.raises(KernelError, match="Other has 0 bytes here and"):
        KernelLibrary(native_kernels().path)


@needs_kernels
def test_the_library_says_what_it_was_compiled_for() -> None:
    """Vectors of 128, 256 or 512 bits."""
    assert native_kernels().vector_bits in (128, 256, 512)
    assert f"{native_kernels().vector_bits}-bit vectors" in native_kernels().describe()


def test_kinds_number_the_operators() -> None:
    """An operator's kind is its place in the list."""
    assert [args.kind for args in ALL_OP_ARGS] == list(range(len(ALL_OP_ARGS)))


def test_dtypes_are_told_by_their_name() -> None:
    """A torch dtype prints as `torch.bfloat16`."""
    names = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn")

    assert [dtype_code(f"torch.{name}") for name in names] == [0, 1, 2, 3, 4]
