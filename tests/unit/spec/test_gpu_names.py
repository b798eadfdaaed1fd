"""Spellings of GPU names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.errors import OptionError
from nanoserve.spec.gpu_names import MAX_GPUS, find_gpu, find_gpus
from nanoserve.spec.gpu_spec import gpu_table


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("h100", "H100 SXM"),
        ("H100 80GB", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100 sxm5", "H100 SXM"),
        ("h100-nvl", "H100 NVL"),
        ("h100pcie", "H100 PCIe"),
        ("RTX 4090", "RTX 4090"),
        ("rtx-4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4070 ti super", "RTX 4070 Ti SUPER"),
        ("4070", "RTX 4070"),
        ("3090ti", "RTX 3090 Ti"),
        ("A100 80GB", "A100 80GB SXM"),
        ("a100-40g", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("V100 32GB", "V100 32GB SXM2"),
        ("Tesla T4", "T4"),
        ("RTX 5090 32GB", "RTX 5090"),
        ("AMD MI300X 192GB", "MI300X"),
        ("gb10", "DGX Spark (GB10)"),
        ("rtx pro 6000", "RTX PRO 6000 Blackwell WS"),
        ("RTX 6000 Ada 48GB", "RTX 6000 Ada"),
    ],
)
def test_spellings_that_mean_one_card(spelled: str, name: str) -> None:
    """Case, hyphens, vendors' words and the memory's size may be there or not."""
    assert find_gpu(spelled).name == name


def test_a_name_that_could_be_several_cards_is_refused() -> None:
    """An A100 has 40 or 80 GB: which one is asked rather than guessed."""
    with pytest.raises(OptionError, match=r"A100 40GB, A100 80GB SXM, A100 80GB PCIe"):
        find_gpu("a100")


@pytest.mark.parametrize("spelled", ["RTX 5090 Laptop", "3080 20gb", "mi300", "GTX 1080", "", "x"])
def test_an_unknown_name_lists_the_nearest(spelled: str) -> None:
    """A card that is not in the table is never taken for another."""
    with pytest.raises(OptionError, match=r"No GPU is known as .* Nearest: .*--gpu-mem"):
        find_gpu(spelled)


def test_an_unknown_name_is_near_its_neighbours() -> None:
    """The names offered are those that look alike."""
    with pytest.raises(OptionError, match="MI300X"):
        find_gpu("mi300")


@pytest.mark.parametrize("gpu", gpu_table(), ids=lambda gpu: gpu.name)
def test_every_name_of_the_table_finds_its_row(gpu) -> None:  # type: ignore[no-untyped-def]
    """Each row can be asked for by the name it has, and by its driver's."""
    assert find_gpu(gpu.name) is gpu
    if gpu.driver_name and gpu.name not in ("RTX 3080 10GB",):
        assert find_gpu(gpu.driver_name).memory_bytes == gpu.memory_bytes


@pytest.mark.parametrize(
    ("spelled", "count", "name"),
    [
        ("h100", 1, "H100 SXM"),
        ("2xH100", 2, "H100 SXM"),
        ("8 x A100 80GB", 8, "A100 80GB SXM"),
        ("4x 4090", 4, "RTX 4090"),
        ("H100 x 4", 4, "H100 SXM"),
        ("RTX 4090 x2", 2, "RTX 4090"),
        ("H100:8", 8, "H100 SXM"),
        ("2 RTX 4090", 2, "RTX 4090"),
    ],
)
def test_several_gpus(spelled: str, count: int, name: str) -> None:
    """A count may stand before the name or after it."""
    group = find_gpus(spelled)

    assert (group.num_gpus, group.gpu.name) == (count, name)


@pytest.mark.parametrize("spelled", ["0xH100", "99999xH100"])
def test_a_count_out_of_range_is_refused(spelled: str) -> None:
    """Nothing but 1 to the limit of GPUs is planned."""
    with pytest.raises(OptionError, match=f"1 to {MAX_GPUS}"):
        find_gpus(spelled)


@given(st.text(max_size=300))
def test_any_text_is_a_gpu_or_refused(text: str) -> None:
    """No name makes look-up fail in another way."""
    try:
        group = find_gpus(text)
    except OptionError:
        return

    assert group.gpu in gpu_table()
