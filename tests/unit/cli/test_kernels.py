"""`nanoserve kernels` says what there is on this machine."""

from pathlib import Path

import pytest

from nanoserve.cli.kernels import print_info
from nanoserve.units import MIB
from tests.native_kernels import needs_kernels


@needs_kernels
def test_info_says_where_packed_weights_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how many bytes they take of the disk."""
    monkeypatch.setattr("nanoserve.cli.kernels.cache_folder", lambda part: tmp_path / part)
    print_info()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "one.weights").write_bytes(bytes(3 * MIB))
    print_info()

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights")]
    assert lines == [
        f"weights   {tmp_path}/weights: 0 packed, 0.0 MiB",
        f"weights   {tmp_path}/weights: 1 packed, 3.0 MiB",
    ]
