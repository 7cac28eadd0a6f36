"""Zones, clocks of hosts, and hosts of files that do not say theirs."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tests.importing import part, read
from triplepoint.errors import UserError
from triplepoint.importers.clocks import find_lag
from triplepoint.importers.folder import Wanted
from triplepoint.importers.hosts import in_order, name_hosts
from triplepoint.importers.times import find_zone, read_times, to_utc
from triplepoint.recording import Part
from triplepoint.units import NS_PER_S

T0 = round(datetime(2026, 5, 1, 10, tzinfo=UTC).timestamp()) * NS_PER_S


@pytest.mark.parametrize(
    ("cell", "seconds", "is_naive"),
    [
        ("2026-05-01T10:00:00.5Z", 0.5, False),
        ("2026-05-01 12:00:00+02:00", 0, False),
        ("2026/05/01 10:00:00.250", 0.25, True),
        ("2026-05-01_10:00:01.000001", 1.000001, True),
        ("1777629600", 0, False),
        ("1777629600.125", 0.125, False),
        ("1777629600125", 0.125, False),
        ("1777629600125000000", 0.125, False),
        ("Fri May  1 10:00:00 UTC 2026", 0, False),
        ("Fri May  1 10:00:00 AM CEST 2026", 0, True),
    ],
)
def test_read_times_of_every_kind(cell: str, seconds: float, is_naive: bool) -> None:
    t_ns, clock = read_times([cell], "here")
    assert t_ns[0] == T0 + round(seconds * NS_PER_S) and clock.is_naive == is_naive and not clock.lacks


def test_read_times_of_day_go_on_after_midnight() -> None:
    t_ns, clock = read_times(["23:59:59", "00:00:01"], "here")
    assert np.diff(t_ns).tolist() == [2 * NS_PER_S] and clock.lacks == "date"


def test_to_utc_follows_summer_time() -> None:
    local, _ = read_times(["2026-10-25 01:30:00", "2026-10-25 04:30:00"], "here")
    expected, _ = read_times(["2026-10-24 23:30:00Z", "2026-10-25 03:30:00Z"], "here")
    assert to_utc(local, find_zone("Europe/Berlin")).tolist() == expected.tolist()
    with pytest.raises(UserError, match="--timezone Mars/Base: no such zone; expected a name such as"):
        find_zone("Mars/Base")


def load(lag_s: float = 0.0, num: int = 600, seed: int = 0) -> list[Part]:
    """Return a host whose GPU works in bouts of unlike length, seen `lag_s` later by its clock."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.choice([90.0, 650.0], 60), 10)[:num]
    t_ns = T0 + (np.arange(num) + round(lag_s)) * NS_PER_S
    return [Part("gpu0", t_ns, np.zeros(num, int), ("gpu_power_w",), (level + rng.normal(0, 5, num))[:, None])]


def test_find_lag_of_hosts_that_work_together() -> None:
    assert find_lag(load(), load(182)) == 182
    assert find_lag(load(), load(-75)) == -75
    assert find_lag(load(), load(0)) is None
    assert find_lag(load(), load(2)) is None, "less than sampling tells"


def test_find_lag_with_a_damaged_time_looks_only_around_the_time_in_common() -> None:
    damaged = Part("gpu1", np.array([0]), np.zeros(1, int), ("gpu_power_w",), np.array([[90.0]]))
    assert find_lag(load(), [damaged, *load(182)]) == 182


def test_find_lag_of_hosts_with_unlike_work_says_nothing() -> None:
    assert find_lag(load(seed=1), load(seed=2)) is None
    steady = [
        Part("gpu0", T0 + np.arange(600) * NS_PER_S, np.zeros(600, int), ("gpu_power_w",), np.full((600, 1), 500.0))
    ]
    assert find_lag(steady, steady) is None


def write(path: Path, start_s: int, num: int = 300, seed: int = 0) -> None:
    level = np.repeat(np.random.default_rng(seed).choice([90, 650], 30), 10)[:num]
    rows = [
        f"{datetime.fromtimestamp(T0 / NS_PER_S + start_s + n, UTC):%Y/%m/%d %H:%M:%S}.000, 0, {watt}"
        for n, watt in enumerate(level)
    ]
    path.write_text("\n".join(["timestamp, index, power.draw [W]", *rows]) + "\n")


def test_clocks_minutes_apart_are_refused_until_told(tmp_path: Path) -> None:
    write(tmp_path / "smi_n1.csv", 0)
    write(tmp_path / "smi_n2.csv", 130)
    with pytest.raises(UserError, match=r"the clock of n2 is 2 min 10 s ahead of n1's: .* give --offset n2=-130"):
        read(tmp_path, Wanted(timezone="UTC"))
    found = read(tmp_path, Wanted(timezone="UTC", offsets={"n2": -130.0}))
    assert list(found.hosts) == ["n1", "n2"]
    with pytest.raises(UserError, match="--offset n3=...: no such host; found n1, n2"):
        read(tmp_path, Wanted(timezone="UTC", offsets={"n3": 1.0}))


def test_hosts_without_a_common_time_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "smi_n1.csv", 0)
    write(tmp_path / "smi_n2.csv", 7200)
    with pytest.raises(
        UserError, match=r"n2 was recorded 2 h 0 min after n1, with no time in common; .*--offset n2=-7200"
    ):
        read(tmp_path, Wanted(timezone="UTC"))


def test_zone_is_found_by_the_work(tmp_path: Path) -> None:
    write(tmp_path / "smi.csv", 2 * 3600)
    work = (T0 + 60 * NS_PER_S, T0 + 90 * NS_PER_S)
    found = read(tmp_path, Wanted(), work)
    assert part(found).t_ns[0] == T0 and found.shift_ns == 7200 * NS_PER_S
    assert "taken as UTC+2 h 0 min" in found.notes[0]
    with pytest.raises(
        UserError,
        match="telemetry is from 2026-05-01 12:00:00 UTC .*1 h 53 min apart; give --timezone|1 h 58 min apart",
    ):
        read(tmp_path, Wanted(timezone="UTC"), work)


def test_work_of_another_day_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "smi.csv", 0)
    later = T0 + 86_400 * 3 * NS_PER_S
    with pytest.raises(UserError, match=r"2 d 23 h apart; give --timezone for local times, --offset"):
        read(tmp_path, Wanted(), (later, later + NS_PER_S))


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        (["gpu_log.csv"], ["node0"]),
        (["node3_gpu.csv"], ["node3"]),
        (["nvidia-smi_h200-01.csv", "nvidia-smi_h200-02.csv"], ["h200-01", "h200-02"]),
        (["a/gpu.csv", "b/gpu.csv"], ["a", "b"]),
        (["a/nvml.log", "a/rapl.log", "b/nvml.log"], ["a", "a", "b"]),
        (["power_gpu0.csv", "power_gpu1.csv"], ["node0", "node0"]),
    ],
)
def test_name_hosts_by_folder_and_file(tmp_path: Path, names: list[str], hosts: list[str]) -> None:
    paths = [tmp_path / name for name in names]
    assert list(name_hosts(paths, tmp_path, None).values()) == hosts


def test_name_hosts_by_pattern_and_order(tmp_path: Path) -> None:
    paths = [tmp_path / "x-n10.csv", tmp_path / "x-n9.csv"]
    found = name_hosts(paths, tmp_path, r"(n\d+)")
    assert in_order(list(found.values()), ()) == ["n9", "n10"]
    assert in_order(list(found.values()), ("n10",)) == ["n10"]
    with pytest.raises(UserError, match="does not match x-n10.csv, or has no group for the host"):
        name_hosts(paths, tmp_path, r"host(\d)")
