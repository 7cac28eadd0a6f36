"""One sampler per GPU."""

from pathlib import Path

import pytest

from triplepoint.errors import UserError
from triplepoint.telemetry.sampler import GpuLocks


def test_claim_second_of_the_same_gpu_is_refused(tmp_path: Path) -> None:
    first = GpuLocks(["GPU-1", "GPU-2"], tmp_path / "node0.arrow", tmp_path)
    with pytest.raises(UserError, match="GPU-2 is already sampled by process .*node0.arrow"):
        GpuLocks(["GPU-3", "GPU-2"], tmp_path / "node0.arrow", tmp_path)
    GpuLocks(["GPU-3"], tmp_path / "node0.arrow", tmp_path).close()  # the refused claim kept nothing
    first.close()


def test_claim_closed_can_be_made_again(tmp_path: Path) -> None:
    GpuLocks(["GPU-1"], tmp_path / "node0.arrow", tmp_path).close()
    GpuLocks(["GPU-1"], tmp_path / "node0.arrow", tmp_path).close()
