"""What figures show: plotted numbers against golden files, words in place of points that gave none, stable bytes."""

import os
import re
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.synthetic import CONFIG, read_tables
from triplepoint import figures
from triplepoint.errors import UserError
from triplepoint.figures import stacks, style
from triplepoint.figures.write import on_cluster, to_csv, write_figure
from triplepoint.tables.claims import CLAIMS
from triplepoint.verdicts.judge import judge_claims

OF_RUNS = [name for name, spec in figures.FIGURES.items() if not spec.simulated]
"""Figures drawn from tables of runs."""
GOLDEN = Path(__file__).parents[2] / "golden" / "figures"


def read(results: Path) -> dict[str, pd.DataFrame]:
    tables = read_tables(results)
    judged_by = {name: tables[name].to_pylist() for name in ("points", "gpus", "kernels")}
    tables["claims"] = CLAIMS.from_rows(judge_claims(CONFIG, judged_by))
    return {name: table.to_pandas() for name, table in tables.items()}


def texts(figure: Figure) -> list[str]:
    return [found.get_text() for found in figure.findobj(Text) if found.get_text()]


class Drawn(dict[tuple[str, str], tuple[Figure, pd.DataFrame]]):
    """Figures by name and study, each drawn when a test first asks for it."""

    def __init__(self, studies: dict[str, Path]) -> None:
        super().__init__()
        self._tables = {study: read(results) for study, results in studies.items()}

    def __missing__(self, key: tuple[str, str]) -> tuple[Figure, pd.DataFrame]:
        name, study = key
        tables = {table: rows.copy() for table, rows in self._tables[study].items()}
        tables["points"] = on_cluster(tables["points"], name)
        self[key] = figures.load(name).draw(tables)
        return self[key]


@pytest.fixture(scope="session")
def drawn(studies: dict[str, Path]) -> Drawn:
    return Drawn(studies)


def test_to_csv_keeps_formulas_text() -> None:
    assert to_csv(pd.DataFrame({"layout": ["=TP1", "-PP2", "TP4", None], "change": [-1.5, 2, 3, 4]})) == (
        "layout,change\n'=TP1,-1.5\n'-PP2,2\nTP4,3\n,4\n"
    )


@pytest.mark.parametrize("study", ["paper", "one", pytest.param("smoke", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", OF_RUNS)
def test_draw_plots_golden_numbers(drawn: dict, name: str, study: str) -> None:
    numbers = drawn[name, study][1]
    if name.startswith("timeline") and study != "one":
        numbers = numbers[numbers["rank"] == 0]
    plotted = to_csv(numbers)
    golden = GOLDEN / f"{name}_{study}.csv"
    if os.environ.get("TRIPLEPOINT_WRITE_GOLDEN"):
        golden.write_text(plotted)
    assert plotted == golden.read_text()


@pytest.mark.parametrize("name", ["parallelism_sweep", "microbatch_power", "kernel_breakdown", "timeline"])
def test_write_figure_twice_gives_the_same_bytes(studies: dict[str, Path], tmp_path: Path, name: str) -> None:
    for again in ("first", "second"):
        write_figure(f"synthetic/{name}", studies["one"], tmp_path / again)
    written = sorted(path.suffix for path in (tmp_path / "first" / "synthetic").iterdir())
    assert written == [".csv", ".pdf", ".png", ".svg"]
    for suffix in (".pdf", ".png", ".csv"):
        first, second = ((tmp_path / again / f"synthetic/{name}{suffix}").read_bytes() for again in ("first", "second"))
        assert first == second
    assert b"CreationDate" not in (tmp_path / "first" / "synthetic" / f"{name}.pdf").read_bytes()


@pytest.mark.parametrize("name", OF_RUNS)
@pytest.mark.parametrize(("study", "stamp"), [("smoke", "MEASURED"), ("paper", "SIMULATED")])
def test_draw_says_where_numbers_come_from(drawn: dict, name: str, study: str, stamp: str) -> None:
    found = texts(drawn[name, study][0])
    assert stamp in found
    made_by = next(line for text in found if "commit 7a8460e" in (line := " ".join(text.split())))
    assert ("NeMo b70681c" in made_by) == (stamp == "SIMULATED") == ("native" not in made_by)
    assert "simulated" not in made_by, "the stamp says it"


@pytest.mark.parametrize("name", OF_RUNS)
@pytest.mark.parametrize("study", ["smoke", "paper", "one"])
def test_draw_has_a_short_head(drawn: dict, name: str, study: str) -> None:
    title, *note, _ = drawn[name, study][0].artists[0].get_child().get_children()
    assert len(title.get_text().splitlines()) <= 2
    assert all(len(area.get_text().splitlines()) <= 2 for area in note) and len(note) < 2


@pytest.mark.parametrize("name", OF_RUNS)
@pytest.mark.parametrize("study", ["smoke", "paper", "one"])
def test_draw_keeps_everything_on_the_page(drawn: dict, name: str, study: str) -> None:
    figure = drawn[name, study][0]
    # As files are written: the style has a minus of its own.
    box = style.styled(figure.get_tightbbox)()
    width, height = figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0
    assert box.x1 <= width and box.y1 <= height


@pytest.mark.parametrize("name", OF_RUNS)
@pytest.mark.parametrize("study", ["smoke", "paper", "one"])
def test_draw_is_readable_where_it_is_printed(drawn: dict, name: str, study: str) -> None:
    figure = drawn[name, study][0]
    assert figure.get_figwidth() in (style.COLUMN, style.PAGE)
    assert figure.get_figheight() <= style.TALLEST
    shown = [found for found in figure.findobj(Text) if found.get_text() and found.get_visible()]
    assert min(found.get_fontsize() for found in shown) >= style.TEXT_PT


@pytest.mark.parametrize("name", OF_RUNS[:3])
def test_draw_has_the_answer_as_title(drawn: dict, name: str) -> None:
    first = texts(drawn[name, "paper"][0])
    assert any("faster than" in text or " than micro-batch 1" in text for text in first)


def test_parallelism_sweep_labels_what_gave_no_numbers(studies: dict[str, Path]) -> None:
    tables = read(studies["smoke"])
    points = tables["points"]
    setting = points["micro_batch_size"] == 1
    points.loc[setting & (points["tp"] == 2) & (points["pp"] == 1), "status"] = "invalid"
    points.loc[setting & (points["pp"] == 2) & (points["tp"] == 1), "status"] = "oom"
    # Fully sharded layouts are tried at another size only.
    is_sharded = points["data_parallel_sharding"] == "optim_grads_params"
    points = points[(setting & ~is_sharded) | ((points["micro_batch_size"] == 4) & is_sharded)]
    figure, numbers = figures.load("parallelism_sweep").draw({"points": points})
    assert {"invalid", "out of memory"} <= set(texts(figure))
    assert "FSDP2" not in set(numbers["layout"]), "it was tried at another size only"


def test_parallelism_sweep_keeps_repeats_apart(studies: dict[str, Path]) -> None:
    _, numbers = figures.load("parallelism_sweep").draw(read(studies["smoke"]))
    repeats = numbers[(numbers["group"] == "tiny-llama on cpu-local") & (numbers["layout"] == "DP2")]
    assert repeats["repeat"].tolist() == [1, 2]
    assert repeats["tokens_per_s_per_gpu"].nunique() == 2


def test_parallelism_sweep_spread_by_hand(studies: dict[str, Path]) -> None:
    _, numbers = figures.load("parallelism_sweep").draw(read(studies["one"]))
    (row,) = numbers.to_dict("records")
    # 2048 tokens on 2 ranks; steps of 0.1976 s (p10) and 0.2152 s (p90).
    assert row["tokens_per_s_per_gpu_p90"] == pytest.approx(1024 / 0.1976)
    assert row["tokens_per_s_per_gpu_p10"] == pytest.approx(1024 / 0.2152)


def test_microbatch_power_leaves_out_what_was_not_measured(studies: dict[str, Path]) -> None:
    figure, numbers = figures.load("microbatch_power").draw(read(studies["one"]))
    assert not [text for text in texts(figure) if "power" in text]
    assert "job_host_power_w" not in numbers


def test_microbatch_power_draws_gpu_power_where_measured(studies: dict[str, Path]) -> None:
    figure, numbers = figures.load("microbatch_power").draw(read(studies["paper"]))
    done = numbers[numbers["status"] == "ok"]
    assert done["gpu_power_w"].between(300, 750).all()
    assert {"out of memory", "invalid", "power limit 700 W"} <= set(texts(figure))


def test_microbatch_power_takes_the_setting_tried_most(studies: dict[str, Path]) -> None:
    _, numbers = figures.load("microbatch_power").draw(read(studies["paper"]))
    assert numbers["setting"].str.contains("full recompute").all()


def test_kernel_breakdown_parts_add_up_to_the_sum(studies: dict[str, Path]) -> None:
    _, numbers = figures.load("kernel_breakdown").draw(read(studies["paper"]))
    done = numbers[numbers["status"] == "ok"].groupby("run").agg({"sum_s": "sum", "kernel_sum_s": "first"})
    assert done["sum_s"].to_numpy() == pytest.approx(done["kernel_sum_s"].to_numpy())


def test_timeline_draws_the_fastest_run_and_few_ranks(studies: dict[str, Path]) -> None:
    tables = read(studies["paper"])
    points, traced = tables["points"], set(tables["timeline"]["run"])
    done = points[(points["status"] == "ok") & points["run"].isin(traced)]
    first = done[done["model"] == "llama3-70b"]
    figure, spans = figures.load("timeline").draw(tables)
    (run,) = spans["run"].unique()
    assert run in set(first.loc[first["step_time_s"] == first["step_time_s"].min(), "run"])
    assert figures.module_of_one_run("timeline").runs_to_draw(points, traced) == [run]
    alone = {**tables, "timeline": tables["timeline"][tables["timeline"]["run"] == run]}
    pd.testing.assert_frame_equal(
        figures.load("timeline").draw(alone)[1].reset_index(drop=True), spans.reset_index(drop=True)
    )
    assert spans["rank"].nunique() <= 16
    assert "power (W)" in texts(figure)
    # PP16 over DP2: the first rank of each stage is every second one.
    tables["points"] = points[(points["pp"] == 16) & (points["model"] == "llama3-70b")]
    _, deepest = figures.load("timeline").draw(tables)
    assert sorted(deepest["rank"].dropna().unique()) == list(range(0, 32, 2))


def test_timeline_has_power_temperature_and_clock_below(studies: dict[str, Path]) -> None:
    tables = read(studies["paper"])
    figure, numbers = figures.load("timeline").draw(tables)
    power = numbers[numbers["lane"] == "gpu_power_w"]
    (run,) = power["run"].unique()
    samples = tables["step_samples"][tables["step_samples"]["run"] == run]
    assert power["lowest"].min() >= samples["gpu_power_w"].min()
    assert power["highest"].max() <= samples["gpu_power_w"].max()
    assert (power["mean"] <= power["highest"]).all() and len(power) > 1
    assert {"GPU power\n(W)", "GPU\n(°C)", "clock\n(GHz)"} <= set(texts(figure))
    _, of_processes = figures.load("timeline").draw(read(studies["smoke"]))
    assert of_processes["mean"].isna().all()


def test_bar_beyond_the_axis_keeps_its_shares() -> None:
    axes = Figure().subplots()
    assert not stacks.draw_stack(axes, 0, 0.5, {"gemm": 300.0, "all_reduce": 100.0}, limit=20.0)
    heights = [patch.get_height() for patch in axes.patches]
    assert heights[0] == pytest.approx(3 * heights[1])
    assert sum(heights) == pytest.approx(1.05 * 20.0)
    assert "400" in axes.texts[0].get_text()
    assert len(axes.lines) == 2, "the edges of the break"


def test_timeline_leaves_lanes_of_the_report_out(studies: dict[str, Path]) -> None:
    tables = read(studies["one"])
    _, before = figures.load("timeline").draw(tables)
    compute = tables["timeline"].assign(lane="compute", label="gemm")
    tables["timeline"] = pd.concat([tables["timeline"], compute], ignore_index=True)
    figure, spans = figures.load("timeline").draw(tables)
    pd.testing.assert_frame_equal(spans, before)
    assert not any("gemm" in text for text in texts(figure))


def test_timeline_without_a_finished_run_says_so(studies: dict[str, Path]) -> None:
    tables = read(studies["one"])
    tables["points"]["status"] = "oom"
    figure, spans = figures.load("timeline").draw(tables)
    assert spans.empty
    assert "no run of this selection finished with a trace" in [" ".join(text.split()) for text in texts(figure)]


def test_load_unknown_figure_suggests_a_known_one() -> None:
    with pytest.raises(UserError, match=re.escape("no figure 'timelin' (did you mean 'timeline'?)")):
        figures.load("timelin")


def test_microbatch_power_leaves_out_layouts_tried_at_one_size(studies: dict[str, Path]) -> None:
    _, numbers = figures.load("microbatch_power").draw(read(studies["smoke"]))
    sizes = numbers.groupby(["group", "layout"])["micro_batch_size"].nunique()
    assert sizes.min() > 1
    _, alone = figures.load("microbatch_power").draw(read(studies["one"]))
    assert len(alone) == 1, "a single point is still drawn"
