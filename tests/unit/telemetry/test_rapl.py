"""RAPL counters on a tree of files shaped like the kernel's."""

from pathlib import Path

import numpy as np
import pytest

from triplepoint.telemetry.host import Rapl
from triplepoint.telemetry.sensor import Sweep

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int) -> Path:
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / "name").write_text(name + "\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path / "energy_uj"


class Opened(Rapl):
    """Counters read once when opened, and once more by each `read`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._sweep = Sweep(self.allocate(1, 0.1)[0])
        self.read()

    def read(self) -> dict[str, float]:
        self._sweep.run(0)
        values = self.take(1)[0, 0] if self.columns else []
        return {name: value for name, value in zip(self.columns, values, strict=True) if np.isfinite(value)}


def test_read_two_packages_sums_joules(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 5)
    rapl = Opened(tmp_path)
    first.write_text("3500000")
    second.write_text("1000005")
    assert rapl.read() == {"cpu_energy_j": 2.5 + 1.0}


def test_read_counter_wraps_once_adds_range(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    rapl = Opened(tmp_path)
    counter.write_text("2000000")
    assert rapl.read()["cpu_energy_j"] == pytest.approx(3.0)


def test_read_dram_is_kept_apart(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    dram = zone(tmp_path, "intel-rapl:0:0", "dram", 0)
    rapl = Opened(tmp_path)
    dram.write_text("7000000")
    assert rapl.read() == {"cpu_energy_j": 0.0, "dram_energy_j": 7.0}
    assert rapl.absent == {}


def test_open_no_powercap_says_so(tmp_path: Path) -> None:
    rapl = Opened(tmp_path / "powercap")
    assert rapl.read() == {}
    assert rapl.absent["cpu_energy_j"] == f"this host has no {tmp_path / 'powercap'}"


def test_read_counter_without_number_leaves_value_out(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    rapl = Opened(tmp_path)
    counter.write_text("")
    assert rapl.read() == {}
