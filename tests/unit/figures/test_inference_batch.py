"""The figure of inference, and what figures of training make of a study of inference alone."""

from pathlib import Path

import pytest
from matplotlib.text import Text

from tests.synthetic import CONFIG
from triplepoint.aggregate import aggregate
from triplepoint.config.plan import Plan
from triplepoint.errors import UserError
from triplepoint.figures import load
from triplepoint.figures.write import write_figure
from triplepoint.plan import select, write_plan
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.tables.schema import column_of
from triplepoint.tables.studies import read_joined
from triplepoint.telemetry.align import align_run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the simulated part of the study `inference` that has no pipeline."""
    results = tmp_path_factory.mktemp("served")
    whole = select(CONFIG, ["inference"], ["cpu-local"], ["h200x32"])
    plan = Plan(entries=tuple(entry for entry in whole.entries if entry.planned.point.layout.pp == 1))
    write_plan(plan, results)
    for entry in plan.valid:
        folder = results / "runs" / entry.run
        simulate_run(entry.planned, folder / "raw", CONFIG)
        align_run(folder / "raw", folder / "telemetry.parquet")
    aggregate(plan, results, CONFIG)
    return results


def test_inference_batch_rows_are_those_simulated(served: Path) -> None:
    points = {row["global_batch_size"]: row for row in read_joined(served, ["inference"], "points").to_pylist()}
    assert sorted(points) == [1, 16, 64, 256]
    for batch, row in points.items():
        # 128 tokens of each sequence over the whole of the batch: the first with the prompt, 127 after it.
        whole_s = row["time_to_first_token_s"] + 127 * row["time_per_output_token_s"]
        assert row["step_time_s"] == pytest.approx(whole_s, rel=1e-6)
        assert row["tokens_per_s"] == pytest.approx(batch * 128 / row["step_time_s"])
        assert row["gpu_energy_per_token_j"] == pytest.approx(row["job_gpu_power_w"] / row["tokens_per_s"])
        # Eight GPUs between idle and their limit of 700 W.
        assert 8 * 100 < row["job_gpu_power_w"] < 8 * 700
        assert row["gpu_power_w"] == pytest.approx(row["job_gpu_power_w"] / 8)
    energy = [points[batch]["gpu_energy_per_token_j"] for batch in sorted(points)]
    assert energy == sorted(energy, reverse=True)


def test_inference_batch_draws_one_line(served: Path) -> None:
    table = read_joined(served, ["inference"], "points").to_pandas()
    figure, numbers = load("inference_batch").draw({"points": table})
    assert numbers["global_batch_size"].tolist() == [1, 16, 64, 256]
    panels = [axes for axes in figure.axes if axes.get_ylabel()]
    assert len(panels) == 5
    assert all(list(axes.lines[0].get_xdata()) == [1, 16, 64, 256] for axes in panels)
    done = table.set_index("global_batch_size")
    drawn = numbers.set_index("global_batch_size")
    for batch in (1, 256):
        row = drawn.loc[batch]
        assert row["time_per_output_token_s"] == done.loc[batch, "time_per_output_token_s"]
        # Ends of time the other way round: the longest batch makes the fewest tokens a second.
        slowest_s = done.loc[batch, "step_time_hi_s"]
        assert row["tokens_per_s_per_gpu_lo"] == pytest.approx(batch * 128 / 8 / slowest_s)
        for column in (
            "tokens_per_s_per_gpu",
            "time_to_first_token_s",
            "time_per_output_token_s",
            "gpu_energy_per_token_j",
        ):
            assert row[column_of(column, "lo")] < row[column] < row[column_of(column, "hi")]
            assert row[column_of(column, "p10")] == pytest.approx(row[column], rel=0.05), "simulated batches are alike"
    shown = {found.get_text() for found in figure.findobj(Text)}
    assert {"llama3-70b", "1024 tokens in, 128 out, 8 GPUs", "TP8", "limit 700 W"} <= shown
    ratio = done.loc[256, "tokens_per_s_per_gpu"] / done.loc[1, "tokens_per_s_per_gpu"]
    title = next(text for text in shown if text.startswith("256 sequences at once"))
    said = f"256 sequences at once generate {ratio:.0f} times as many tokens per second as one in 1 layout"
    assert " ".join(title.split()) == said


@pytest.mark.parametrize("name", ["parallelism_sweep", "microbatch_power", "kernel_breakdown", "timeline"])
def test_figures_of_training_say_that_there_is_none(name: str, served: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^figure inference/{name}: no point of training"):
        write_figure(f"inference/{name}", served, tmp_path)
    assert not any(tmp_path.iterdir())
