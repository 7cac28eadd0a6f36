"""Swings of nodes, racks and jobs, specifications and remedies, against signals whose answers are known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triplepoint.advise.swings.answer import Capped, answer_of, with_capped
from triplepoint.advise.swings.interval import line_of, numbers_of, of_recording
from triplepoint.advise.swings.remedies import Course, floor, running_mean, stagger, storage
from triplepoint.advise.swings.source import NodePower, read_file
from triplepoint.advise.swings.spec import BandLimit, SwingSpec, check_band, read_spec, verdicts
from triplepoint.advise.swings.text import headline, render
from triplepoint.cli import main
from triplepoint.errors import UserError

PERIOD_S = 0.1
T_S = np.arange(4000) * PERIOD_S
SQUARE_S = 20.0
MEAN_W, HALF_W = 500e3, 100e3
SQUARE = Course(np.where(T_S % SQUARE_S < SQUARE_S / 2, MEAN_W + HALF_W, MEAN_W - HALF_W), PERIOD_S, 0.0)


def sine(phase: float, amplitude_w: float = 100.0, frequency_hz: float = 0.25) -> np.ndarray:
    return np.asarray(1000.0 + amplitude_w * np.sin(2 * np.pi * frequency_hz * T_S + phase))


def of_nodes(*nodes_w: np.ndarray, period_s: float = PERIOD_S, nodes_per_rack: int | None = None) -> NodePower:
    return NodePower("made up", "file", np.stack(nodes_w, axis=1), period_s, 0.0, nodes_per_rack)


def test_line_of_a_job_is_nodes_times_amplitude_times_coherence() -> None:
    answer = answer_of(of_nodes(sine(0.0), sine(np.pi / 2)))
    assert answer.together is not None
    # A quarter turn apart, two sines of 100 W add up to one of 2 x 100 W x |mean of 1 and i|.
    assert answer.together.coherence == pytest.approx(np.sqrt(0.5), abs=1e-3)
    assert answer.together.node_line_w == pytest.approx(100.0, rel=1e-3)
    assert answer.together.job_line_w == pytest.approx(100.0 * np.sqrt(2), rel=1e-3)
    assert answer.levels[-1].line_w == pytest.approx(answer.together.job_line_w, rel=1e-3)
    assert answer.levels[-1].line_hz == pytest.approx(0.25, abs=1e-3)


def test_spectrum_has_the_lines_of_the_job_and_is_short() -> None:
    two_lines = sine(0.0) + 30.0 * np.sin(2 * np.pi * 2.0 * T_S)
    found = answer_of(of_nodes(two_lines, two_lines)).content()["spectrum"]
    frequencies_hz, amplitudes_w = np.array(found["frequencies_hz"]), np.array(found["amplitudes_w"])
    assert 300 < len(frequencies_hz) == len(amplitudes_w) <= 500
    assert (np.diff(frequencies_hz) > 0).all() and frequencies_hz[-1] <= 5.0
    for hz, watts in ((0.25, 200.0), (2.0, 60.0)):
        near = np.abs(frequencies_hz - hz) < 0.01
        assert amplitudes_w[near].max() == pytest.approx(watts, rel=0.01)
    assert np.median(amplitudes_w[(frequencies_hz > 0.5) & (frequencies_hz < 1.5)]) < 1.0


def test_floor_is_of_the_level_that_limits_are_of() -> None:
    assert "all nodes together never draw less than 550 kW" in floor(SQUARE, SwingSpec(range_kw=50)).text
    assert "the node never draws less" in floor(SQUARE, SwingSpec(range_kw=50, level="node")).text


def test_caps_that_do_the_same_share_a_line() -> None:
    power = of_nodes(sine(0.0), sine(0.0))
    capped = [Capped(watts, 1.0, power) for watts in (630.0, 560.0)] + [Capped(490.0, 1.1, power)]
    text = render(with_capped(answer_of(power, SwingSpec(range_fraction=0.01)), 1, capped))
    lines = " ".join(text.split()).split("cap (not enough): ")
    assert len(lines) == 3
    assert lines[1].startswith("GPUs limited to 630 W: ") and "(the same at 560 W)" in lines[1]
    assert lines[2].startswith("GPUs limited to 490 W: step time +10.0 %")


def test_node_and_rack_that_swing_most_are_told() -> None:
    nodes = [sine(0.0, amplitude_w) for amplitude_w in (100.0, 100.0, 100.0, 200.0, 300.0, 10.0)]
    node, rack, job = answer_of(of_nodes(*nodes, nodes_per_rack=2)).levels
    assert (node.which, rack.which, job.which) == ("node4", "rack2", "job")
    assert node.range_fraction == pytest.approx(0.6, rel=0.01)
    # Nodes 2 and 3 swing by 300 W of 2 kW, nodes 4 and 5 by 310.
    assert rack.range_fraction == pytest.approx(2 * 310 / 2000, rel=0.01)
    assert job.range_fraction == pytest.approx(2 * 810 / 6000, rel=0.01)


def test_band_is_what_the_meter_shows_unless_asked_for() -> None:
    power = of_nodes(sine(0.0))
    answer = answer_of(power)
    assert answer.band_hz == (0.1, 5.0)
    assert any("0.1 to 5 Hz" in note for note in answer.notes)
    assert answer.levels[0].band_rms_w == pytest.approx(100.0 / np.sqrt(2), rel=1e-3)
    assert answer_of(power, band_hz=(0.3, 2.0)).levels[0].band_share == pytest.approx(0.0, abs=1e-3)
    with pytest.raises(UserError, match=r"show nothing above 5 Hz; it can be asked of 0\.1 to 5 Hz"):
        answer_of(power, band_hz=(0.1, 20.0))


def test_check_band_names_window_length_and_what_is_left() -> None:
    # arXiv:2508.14318: a mean of 100 ms shows nothing above 5 Hz, however often it is read.
    with pytest.raises(UserError, match=r"mean of 0\.1 s, show nothing above 5 Hz; it can be asked of 0\.1 to 5 Hz"):
        check_band((0.1, 20.0), 1000.0, 0.01, 0.1)
    with pytest.raises(UserError, match=r"40 s tell lines apart from 0\.2 Hz up; it can be asked of 0\.2 to 2 Hz"):
        check_band((0.1, 2.0), 40.0, 0.01, 0.0)
    with pytest.raises(UserError, match="no part of that"):
        check_band((1.0, 20.0), 1000.0, 2.0, 0.0)
    check_band((0.1, 20.0), 1000.0, 0.02, 0.0)


def test_verdicts_of_a_square_wave_by_hand() -> None:
    band = BandLimit(low_hz=0.04, high_hz=0.06, rms_fraction=0.2)
    spec = SwingSpec(range_fraction=0.5, range_kw=150, ramp_up_kw_per_s=2000, ramp_down_kw_per_s=1000, bands=(band,))
    found = {verdict.line: verdict for verdict in verdicts(spec, SQUARE.power_w, PERIOD_S)}
    assert found["range_fraction"].found == pytest.approx(0.4) and found["range_fraction"].passes
    assert found["range_fraction"].margin == pytest.approx(0.2)
    assert found["range_kw"].found == pytest.approx(200.0) and not found["range_kw"].passes
    # 200 kW in a tenth of a second; the fundamental of a square wave is 4 / pi of half its height.
    assert found["ramp_up_kw_per_s"].margin == pytest.approx(0.0)
    assert found["ramp_down_kw_per_s"].margin == pytest.approx(-1.0)
    fundamental = 4 / np.pi * HALF_W / np.sqrt(2) / MEAN_W
    assert found["rms_fraction 0.04-0.06 Hz"].found == pytest.approx(fundamental, rel=0.001)


def test_storage_for_a_ramp_by_hand() -> None:
    # A running mean over w s makes 2 x 100 kW a ramp over w. Before a rise the storage takes 100 kW x w / 4 and gives
    # it back after; around a fall it gives first. So it has to hold twice that.
    found = storage(SQUARE, SwingSpec(ramp_up_kw_per_s=200 / 4.1 + 0.01))
    assert found.passes and found.numbers["window_s"] == pytest.approx(4.1)
    assert found.numbers["energy_kwh"] == pytest.approx(100 * 4.1 / 2 / 3600, rel=0.01)
    assert found.numbers["power_kw"] == pytest.approx(100.0, rel=0.03)


def test_storage_for_a_range_by_hand() -> None:
    # Cut to 100 kW about the mean: 50 kW for each half of 10 s.
    found = storage(SQUARE, SwingSpec(range_kw=100))
    assert found.passes and found.numbers["window_s"] == 0.0
    assert found.numbers["power_kw"] == pytest.approx(50.0, rel=1e-4)
    assert found.numbers["energy_kwh"] == pytest.approx(50 * 10 / 3600, rel=1e-4)


def test_storage_says_where_no_running_mean_is_enough() -> None:
    drifting = SQUARE.with_power(500e3 + 100 * T_S)
    found = storage(drifting, SwingSpec(ramp_up_kw_per_s=0.01))
    assert found.passes is False and not found.numbers


def test_floor_of_a_square_wave_by_hand() -> None:
    found = floor(SQUARE, SwingSpec(range_kw=50))
    assert found.passes
    assert found.numbers["floor_kw"] == pytest.approx(550.0)
    # From 400 to 550 kW for half of the time, over a mean of 500 kW.
    assert found.numbers["extra_kw"] == pytest.approx(75.0)
    assert found.numbers["extra_energy_fraction"] == pytest.approx(0.15)


def test_two_jobs_half_a_period_apart_cancel() -> None:
    found = stagger(SQUARE, 2, 1 / SQUARE_S, SwingSpec(range_fraction=0.1))
    assert found.passes
    assert found.numbers["in_step_range_fraction"] == pytest.approx(0.4)
    assert found.numbers["even_range_fraction"] == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < found.numbers["by_chance_range_fraction"] <= 0.4


def test_one_synchronous_job_cannot_be_staggered() -> None:
    found = stagger(SQUARE, 1, 1 / SQUARE_S, None)
    assert found.passes is None and "not possible" in found.text


def test_running_mean_by_hand() -> None:
    np.testing.assert_allclose(running_mean(np.array([3.0, 0.0, 3.0, 6.0]), 3), [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("level: job", "no limit"),
        ("range: 1", "range"),
        ("bands: [{low_hz: 2, high_hz: 1, rms_kw: 3}]", "expected a higher one"),
        ("bands: [{low_hz: 1, high_hz: 2}]", "rms_fraction, rms_kw or share"),
        ("ramp_up_kw_per_s: -1", "expected more than 0"),
    ],
)
def test_wrong_specification_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_spec(path)


def test_limits_of_racks_need_to_know_racks() -> None:
    spec = SwingSpec(level="rack", range_kw=1)
    with pytest.raises(UserError, match="--nodes-per-rack"):
        answer_of(of_nodes(sine(0.0), sine(1.0)), spec)
    assert answer_of(of_nodes(sine(0.0), sine(1.0), nodes_per_rack=1), spec).verdicts


def test_files_of_rows_and_of_columns_are_one(tmp_path: Path) -> None:
    columns = {"time_ms": T_S * 1e3 + 1.7e12, "a": sine(0.0), "b": sine(1.0)}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    lines = ["node,t_s,node_power_w"]
    lines += [f"{node},{t},{w}" for node in "ab" for t, w in zip(T_S.tolist(), columns[node].tolist(), strict=True)]
    (tmp_path / "long.csv").write_text("\n".join(lines))
    wide, long = (read_file(tmp_path / name) for name in ("wide.parquet", "long.csv"))
    assert wide.period_s == pytest.approx(long.period_s, rel=1e-6) == pytest.approx(PERIOD_S, rel=1e-6)
    np.testing.assert_allclose(wide.nodes_w[:3000], long.nodes_w[:3000], atol=0.5)
    assert wide.names == long.names == ("a", "b")


def test_file_in_utf16_is_read_as_in_utf8(tmp_path: Path) -> None:
    text = "t_s,power_w\n" + "".join(f"{index / 10},{500 + index % 7}\n" for index in range(200))
    (tmp_path / "a.csv").write_text(text, encoding="utf-16")
    (tmp_path / "b.csv").write_text(text)
    assert np.array_equal(read_file(tmp_path / "a.csv").nodes_w, read_file(tmp_path / "b.csv").nodes_w)


def test_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t_s,node_power_w,node_power_w\n0,1,2\n1,2,3\n")
    with pytest.raises(UserError, match=r"a.csv: column 'node_power_w' is there twice; leave one out, or rename it"):
        read_file(tmp_path / "a.csv")


def test_node_of_a_wide_file_keeps_its_name(tmp_path: Path) -> None:
    columns = {"t_s": T_S, "rack3-a_power_w": sine(0.0, 10.0), "rack3-b_power_w": sine(0.0, 300.0)}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    assert answer_of(read_file(tmp_path / "wide.parquet")).levels[0].which == "rack3-b"
    (tmp_path / "long.csv").write_text("node,t_s,node_power_w\n" + "".join(f"7,{t},900\n" for t in range(200)))
    assert read_file(tmp_path / "long.csv").names == ("node7",)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("inlet_c", 24.0, "column inlet_c is no power of a node"),
        ("step", 900.0, "column step is no power of a node"),
        ("inlet", 24.0, "column inlet has a mean of 24, most others one near 1000 W"),
        ("hall", 64_000.0, "column hall has a mean of 6.4e\\+04"),
    ],
)
def test_column_that_is_no_node_is_refused(name: str, value: float, said: str, tmp_path: Path) -> None:
    columns = {"t_s": T_S, "a": sine(0.0), "b": sine(0.0), name: np.full(len(T_S), value)}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    with pytest.raises(UserError, match=said):
        read_file(tmp_path / "wide.parquet")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t_s,node_power_w\n0,5000\n1,-70\n2,5000\n", r"readings below 0 W \(1\), down to -70 W"),
        ("t_s,node_power_w\n0,5000\n1,1e18\n2,5000\n", r"readings above 1e\+06 W \(1\), up to 1e\+18 W"),
        ("t_s,job_power_w\n0,5000\n1,1e18\n2,5000\n", r"readings above 1e\+10 W \(1\), up to 1e\+18 W"),
        ("t_s,node_power_w\n0,5000\n1,inf\n2,5000\n", r"infinite readings \(1\); mend them"),
        ("node,watts\n1,2\n", "no column t_s"),
        ("t_s,node_power_w\n1,5\n", "fewer than two readings"),
        ("t_s,node_power_w\n1,5\n2,5\n3,5\n1e18,5\n", "mend the time that is far off"),
        ("t_s,node_power_w\n1,5\n2,6\n3,6\n", "expected 100"),
        ("t_s,node_power_w\n1,a\n2,b\n", "expected numbers"),
        ("t_s,node_power_w\nnan,5\nnan,6\n", r"column node_power_w has fewer than two .* different times \(0\)"),
        ("t_s,a\x1b[31m,b\n1,5,\n2,6,\n", r"^[^\x1b]*power.csv"),
        ("t_s,node_power_w\n", "no row"),
    ],
)
def test_file_without_power_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "power.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        read_file(tmp_path / "power.csv")


def test_command_answers_as_json_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"t_s": T_S, "a": SQUARE.power_w, "b": SQUARE.power_w}), tmp_path / "power.parquet")
    (tmp_path / "spec.yaml").write_text("range_fraction: 0.2\ndescription: a hall\n")
    words = ["swings", str(tmp_path / "power.parquet"), "--spec", str(tmp_path / "spec.yaml"), "--jobs", "2"]
    assert main([*words, "--json", "--figure", str(tmp_path / "swings.pdf")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [level["level"] for level in answer["levels"]] == ["node", "job"]
    (verdict,) = answer["verdicts"]
    assert (verdict["line"], verdict["unit"], verdict["passes"]) == ("range_fraction", "1", False)
    assert verdict["verdict"] == "fails"
    assert [verdict[key] for key in ("found", "limit", "margin")] == pytest.approx([0.4, 0.2, -1.0])
    assert 0.2 < verdict["found_lo"] <= verdict["found"] <= verdict["found_hi"]
    assert answer["levels"][1]["intervals"]["range_fraction"] == [verdict["found_lo"], verdict["found_hi"]]
    assert [one["name"] for one in answer["remedies"]] == ["stagger", "floor", "storage"]
    assert (tmp_path / "swings.pdf").stat().st_size > 1000
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "FAIL  range over mean power" in said and "storage (enough): " in said and "(a hall)" in said


def test_no_more_than_all_of_a_swing_is_in_a_band() -> None:
    """A square wave of a period that no part of the recording holds whole: parts differ, so its interval is wide."""
    t_s, band = np.arange(0.0, 300.0, 0.1), (0.05, 5.0)
    power_w = np.where(t_s % 10.3 < 5.15, 6000.0, 4000.0)
    found = numbers_of(power_w, 0.1, [band])
    share = of_recording(power_w, 0.1, [band], found, 29)[line_of("share", band)]
    assert 0.95 < share.lo < found[line_of("share", band)] <= share.hi == 1.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--period", "1"], "--period is of a point"),
        (["--steps", "5"], "--steps is of a point"),
        (["--band", "3:1"], "expected LOW:HIGH"),
        (["--evaluate", "12"], "EVERY:SEQUENCES"),
        (["--figure", "a.txt"], "expected a name that ends in .pdf"),
        (["--band", "0.1:20"], "it can be asked of 0.1 to 5 Hz"),
        (["--window", "3000"], "--window 3000: "),
        (["--band", "6:20"], "it shows no part of that; record at a shorter period, or name a point file"),
    ],
)
def test_command_refuses_in_a_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"t_s": T_S, "power_w": SQUARE.power_w}), tmp_path / "power.parquet")
    assert main(["swings", str(tmp_path / "power.parquet"), *words]) == 2
    assert said in capsys.readouterr().err


def test_answer_says_range_line_and_verdict_each_in_a_sentence() -> None:
    power = of_nodes(sine(0.0), sine(0.0))
    # Two sines of 100 W in phase: 200 W, of which 1 to 99 % of the time are within 199.9.
    swing = "Power of the job swings by 20.0 % [20.0, 20.0] of its mean"
    said = f"{swing}, mostly once in 4 s (0.2500 Hz, amplitude 0.2 kW)."
    assert headline(answer_of(power)) == said
    assert headline(answer_of(power, SwingSpec(ramp_up_kw_per_s=0.1))) == f"{said} It exceeds 1 of 1 limits."
    assert headline(answer_of(power, SwingSpec(ramp_up_kw_per_s=1.0))) == f"{said} It keeps to the limit."


def test_constant_power_does_not_swing() -> None:
    constant = np.full(len(T_S), 500.0)
    said = "Power of the job does not swing: its range is below 0.05 % of its mean."
    assert headline(answer_of(of_nodes(constant, constant))) == said


def noisy(seed: int, num: int = 1000) -> NodePower:
    """Return steps of 10 s with dips of varying depth, read every 0.5 s."""
    random, t_s = np.random.default_rng(seed), 0.5 * np.arange(num)
    depth_w = 300.0 * (1.0 + 0.15 * random.standard_normal(num // 20 + 1))[(t_s // 10).astype(int)]
    power_w = 1500.0 - depth_w * (t_s % 10 >= 7) + 10.0 * random.standard_normal(num)
    return NodePower("noisy", "file", power_w[:, None], 0.5, 0.0)


def test_intervals_of_a_recording_hold_those_of_another_one() -> None:
    names = ("range_fraction", "ramp_up_w_per_s", "ramp_down_w_per_s", "band_rms_w")
    answers = [answer_of(noisy(seed), band_hz=(0.1, 1.0)).levels[-1] for seed in range(40)]
    pairs = list(zip(answers[:20], answers[20:], strict=True))
    for name in names:
        held = [one.intervals[name][0] <= getattr(other, name) <= one.intervals[name][1] for one, other in pairs]
        # At 90 %, fewer than 15 of 20 have a probability of 1 %.
        assert sum(held) >= 15, name
        # None is so wide that it says nothing.
        assert all(high - low < 0.8 * getattr(one, name) for one, _ in pairs for low, high in [one.intervals[name]])


def test_verdict_cannot_be_told_where_the_interval_holds_the_limit() -> None:
    found = answer_of(noisy(0)).levels[-1]
    low, high = found.intervals["range_fraction"]
    told = {
        limit: answer_of(noisy(0), SwingSpec(range_fraction=limit))
        for limit in (0.9 * low, found.range_fraction, 1.1 * high)
    }
    assert [answer.verdicts[0].passes for answer in told.values()] == [False, None, True]
    doubtful = told[found.range_fraction]
    assert doubtful.verdicts[0].words == "cannot be told: the interval holds the limit"
    assert headline(doubtful).endswith("Of 1 of 1 it cannot be told: the 90 % interval holds the limit.")
    assert "open  range over mean power" in render(doubtful)
    # Remedies leave room for the upper end.
    (smooth,) = [remedy for remedy in doubtful.remedies if remedy.name == "floor"]
    assert smooth.passes and smooth.numbers["extra_kw"] > 0.0
    assert not told[1.1 * high].remedies


def test_recording_of_a_single_step_has_no_interval() -> None:
    answer = answer_of(replace(noisy(0), num_steps=1), SwingSpec(range_fraction=0.5))
    assert not answer.levels[-1].intervals and answer.verdicts[0].within is None and answer.verdicts[0].passes
    assert [note for note in answer.notes if note.startswith("no number has an interval: the recording holds 1 step")]


def test_note_says_that_a_cap_is_not_told_from_readings() -> None:
    beyond, within = (answer_of(of_nodes(sine(0.0)), SwingSpec(ramp_up_kw_per_s=limit)) for limit in (0.1, 1.0))
    assert any(note.startswith("a power limit is not judged here") for note in beyond.notes)
    assert not any(note.startswith("a power limit is not judged here") for note in within.notes)
