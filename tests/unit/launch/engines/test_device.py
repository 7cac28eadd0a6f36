"""Where ranks compute."""

import pytest
import torch

from triplepoint.errors import UserError
from triplepoint.launch.engines.loop import open_device


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_open_device_without_a_gpu_says_what_to_do(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=f"sees no GPU, and the cluster's device is {kind}; .* 'simulated'"):
        open_device(kind, 3)
