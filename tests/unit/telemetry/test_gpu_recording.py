import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import hgx_h200
from triplepoint.calibrate.recording import read_kernels, read_samples, read_windows
from triplepoint.telemetry import overhead

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep threads of torch from spinning on cores the sampler needs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_record_gpu_leaves_what_its_readers_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triplepoint.telemetry.record_gpu import record_gpu

    lines: list[str] = []
    with fake_node(hgx_h200(1)) as node:
        for name, value in node.env.items():
            monkeypatch.setenv(name, value)
        record_gpu(tmp_path, "cuda", 60.0, lines.append, device="cpu")
    account = json.loads((tmp_path / "account.json").read_text())
    assert {stage["stage"]: stage["error"] for stage in account["stages"]} == dict.fromkeys(
        ("idle", "kernels", "squares", "overhead", "heat")
    )
    assert len(lines) == 5
    assert len(read_kernels(tmp_path)) == 6
    assert {"idle", "random", "heating", "cooling"} <= {row["stage"] for row in read_windows(tmp_path)}
    for recording in ("quick", "default"):
        assert len(read_samples(tmp_path, recording, 700.0)["t_ns"])
        assert account[f"sampler_{recording}"]["cpu_s"] > 0
    assert set(overhead.from_folder(tmp_path)) == {"training", "churn"}
