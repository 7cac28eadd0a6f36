"""Figure `projection`: its title, from rows made by hand, and that it is written from what is simulated for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from triplepoint.effects.titles import Statement
from triplepoint.errors import UserError
from triplepoint.figures import projection, spec_of
from triplepoint.figures.write import write_figure
from triplepoint.tables.projection import PROJECTION

ENDS = {
    "step_time_s": 2.0, "tokens_per_s": 1e6, "power_w": 1e6, "node_energy_per_token_j": 1.0, "gpu_temp_max_c": 60.0,
    "slowest_gpu_fraction": 0.03, "mttf_s": 7200.0, "checkpoint_every_s": 600.0, "kept_tokens_per_s": 9e5,
}  # fmt: skip


def row(num_gpus: int, network: str, efficiency: float, over_first: tuple[float, float, float]) -> dict[str, Any]:
    quantities = {f"{name}{end}": value for name, value in ENDS.items() for end in ("", "_lo", "_hi")}
    ratio = dict(zip(("", "_lo", "_hi"), over_first, strict=True))
    return {
        "model": "gpt3-175b", "run": "run", "cluster": "h100x512", "network": network, "num_gpus": num_gpus,
        "start_gpus": 512, "oversubscription": 1.0, "global_batch_size": num_gpus, "exposed_comm_s": 0.1,
        "efficiency": efficiency, "efficiency_lo": efficiency - 0.1, "efficiency_hi": efficiency + 0.1,
        "goodput": 0.9, "goodput_lo": 0.8, "goodput_hi": 0.95, "stack": "NeMo b70681c", "origin": "simulated",
    } | {f"step_time_over_first{end}": value for end, value in ratio.items()} | quantities  # fmt: skip


def rows_of(over_first: tuple[float, float, float]) -> list[dict[str, Any]]:
    one = (1.0, 1.0, 1.0)
    slow = [row(size, "8x100 Gb/s", efficiency, one) for size, efficiency in ((512, 1.0), (8192, 0.975))]
    return slow + [row(size, "8x800 Gb/s", 1.0, over_first) for size in (512, 8192)]


def answer(over_first: tuple[float, float, float]) -> Statement:
    (said,) = projection.answer(PROJECTION.from_rows(rows_of(over_first)).to_pandas())
    return said


def test_title_has_the_largest_size_and_the_change_of_the_network() -> None:
    said = answer((0.84, 0.79, 0.88))
    assert said.sentence == "with 8x800 Gb/s instead of 8x100 Gb/s steps of 8,192 GPUs are 16.0 % [12, 21] shorter"
    assert said.others == (
        "8x100 Gb/s keeps 98 % [88, 108] of the speed per GPU of 512", "they leave 90 % [80, 95] of the tokens",
    )  # fmt: skip


def test_title_of_one_network_is_the_efficiency() -> None:
    rows = [row(512, "8x100 Gb/s", 1.0, (1.0, 1.0, 1.0)), row(8192, "8x100 Gb/s", 0.975, (1.0, 1.0, 1.0))]
    (said,) = projection.answer(PROJECTION.from_rows(rows).to_pandas())
    assert said.sentence.startswith("on 8,192 GPUs each trains 2.5 % [")
    assert said.sentence.endswith(" fewer tokens per second than on 512, a tie")


def test_a_change_that_may_be_none_is_a_tie() -> None:
    assert answer((0.98, 0.9, 1.02)).sentence.endswith("are 2.0 % [-2.0, 10.0] shorter, a tie")
    assert answer((1.0, 0.9999, 1.0004)).sentence.endswith("are as long")


def test_sizes_in_any_order_give_lines_that_do_not_turn_back() -> None:
    rows = PROJECTION.from_rows(rows_of((0.84, 0.79, 0.88))[::-1]).to_pandas()
    figure, drawn = projection.draw({"projection": rows})
    assert drawn["num_gpus"].is_monotonic_increasing
    lines = [line.get_xdata() for axes in figure.axes for line in axes.lines if len(line.get_xdata())]
    assert len(lines) == 7 and all((np.diff(np.asarray(line)) > 0).all() for line in lines)
    assert [text.get_text() for text in figure.legends[0].texts] == ["8x800 Gb/s", "8x100 Gb/s"]


def test_unknown_power_is_said_in_place_of_energies() -> None:
    names = [f"{name}{end}" for name in ("power_w", "node_energy_per_token_j") for end in ("", "_lo", "_hi")]
    rows = [one | dict.fromkeys(names) for one in rows_of((0.84, 0.79, 0.88))]
    figure, _ = projection.draw({"projection": PROJECTION.from_rows(rows).to_pandas()})
    energy = figure.axes[1]
    assert [text.get_text() for text in energy.texts] == ["power of this GPU type is not known"]
    assert not energy.lines and not len(energy.get_xticks()) and not len(energy.get_yticks())


def test_figure_is_written_from_its_projection(tmp_path: Path) -> None:
    path = tmp_path / "results" / f"{spec_of('projection').simulated}.parquet"
    path.parent.mkdir(parents=True)
    PROJECTION.write(path, PROJECTION.from_rows(rows_of((0.84, 0.79, 0.88))))
    write_figure("projection", tmp_path / "results", tmp_path / "figs")
    assert len((tmp_path / "figs" / "projection.csv").read_text().splitlines()) == 5
    with pytest.raises(UserError, match="make it with 'snakemake figs/projection.pdf'"):
        write_figure("projection", tmp_path, tmp_path / "figs")


def test_figure_without_power_has_time_and_failures() -> None:
    rows = [one | {"power_w": None, "node_energy_per_token_j": None} for one in rows_of((0.84, 0.79, 0.88))]
    figure, _ = projection.draw({"projection": PROJECTION.from_rows(rows).to_pandas()})
    assert any("SIMULATED" in text.get_text() for text in figure.findobj(Text))
