"""The catalogue of figures: what each names is there, and which figures a plan and a study of one's own have."""

import ast
import importlib
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from triplepoint import figures
from triplepoint.config.plan import Plan
from triplepoint.errors import UserError
from triplepoint.figures import FIGURES, NAMES, reference, spec_of
from triplepoint.figures.selection import figures_of, require_selected
from triplepoint.figures.write import on_cluster, write_figure
from triplepoint.plan import select
from triplepoint.tables.results import RESULT_TABLES

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config"
SHIPPED = {path.stem for path in (CONFIG / "studies").glob("*.yaml")}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """What `make all` selects."""
    chosen = yaml.safe_load((CONFIG / "config.yaml").read_text())
    return select(CONFIG, None, chosen["clusters"], chosen["simulated"])


@pytest.mark.parametrize("name", NAMES)
def test_catalogue_names_what_there_is(name: str) -> None:
    spec = FIGURES[name]
    assert set(spec.studies) <= SHIPPED
    assert set(spec.tables) <= set(RESULT_TABLES)
    assert hasattr(importlib.import_module(spec.module), "draw")
    assert spec.question.endswith("?") and len(spec.question) < 90
    assert len(figures.caption(name, ROOT / "workflow" / "report").split()) > 25


@pytest.mark.parametrize("name", NAMES)
def test_caption_is_three_sentences_at_most_and_says_what_numbers_are_from(name: str) -> None:
    caption, notes = figures.text_of(name, ROOT / "workflow" / "report")
    assert len(re.split(r"(?<=[.?])\s+(?=[A-Z])", caption)) <= 3
    assert re.search("simulated|measured|published", caption)
    assert notes


def test_catalogue_has_every_figure_there_is() -> None:
    """A module that draws is in the catalogue."""
    modules = {
        path.stem
        for path in Path(figures.__file__).parent.glob("*.py")
        if any(isinstance(node, ast.FunctionDef) and node.name == "draw" for node in ast.parse(path.read_text()).body)
    }
    assert modules == {spec.module.rpartition(".")[2] for spec in FIGURES.values()}


def test_reference_is_written_from_the_catalogue() -> None:
    assert (ROOT / reference.PATH).read_text() == reference.reference(ROOT / figures.CAPTIONS), (
        f"run '{reference.COMMAND}'"
    )


def test_readme_says_which_figure_stands_for_which_published_one() -> None:
    readme = (ROOT / reference.README).read_text()
    assert reference.with_table(readme) == readme, f"run '{reference.COMMAND}'"
    with pytest.raises(ValueError, match="0 tables of published figures"):
        reference.with_table("no table")


ON_REQUEST = ("network", "power_swings", "projection")
"""Figures of clusters that `make all` does not simulate."""


def test_all_draws_the_whole_catalogue(plan: Plan) -> None:
    expected = [name for name in NAMES if name not in ON_REQUEST]
    assert [name for name in figures_of(plan) if "/" not in name] == expected


def test_network_is_drawn_where_its_clusters_are_simulated() -> None:
    networks = [path.stem for path in (CONFIG / "clusters").glob("h200x32-[0-9]*.yaml")]
    assert len(networks) == 6
    assert "network" in figures_of(select(CONFIG, ["network"], ["cpu-local"], networks))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ON_REQUEST])
def test_figure_draws_points_of_its_studies(plan: Plan, name: str) -> None:
    spec = FIGURES[name]
    points = [entry.planned.point for entry in plan.valid if set(entry.studies) & set(spec.studies)]
    assert spec.need.fits(points) or not spec.studies


def test_study_of_ones_own_has_the_figures_that_fit_and_no_others(plan: Plan) -> None:
    """The study `inference` under another name: a batch that varies, of tasks other than training."""
    own = Plan(entries=tuple(
        entry.model_copy(update={"studies": ("mine",)}) for entry in plan.entries if "inference" in entry.studies
    ))  # fmt: skip
    assert figures_of(own) == ["mine/telemetry_validation", "mine/inference_batch"]


def test_study_of_ones_own_on_cpu_with_one_layout(plan: Plan) -> None:
    entry = next(entry for entry in plan.valid if "smoke" in entry.studies)
    own = Plan(entries=(entry.model_copy(update={"studies": ("mine",)}),))
    found = set(figures_of(own))
    assert {"mine/timeline", "mine/kernel_breakdown"} <= found
    assert not {"mine/parallelism_sweep", "mine/microbatch_power", "mine/thermal_heatmap"} & found


def test_figure_of_one_cluster_is_drawn_where_the_plan_has_it(plan: Plan) -> None:
    for cluster, is_there in (("h100x64", True), ("h200x32", False)):
        entries = tuple(
            entry
            for entry in plan.entries
            if "parallelism" in entry.studies and entry.planned.point.cluster.name == cluster
        )
        shared = figures_of(Plan(entries=entries))
        assert "parallelism_sweep" in shared
        assert ("parallelism_sweep_h100" in shared) == is_there
        # A study of one's own has one figure, of all its clusters.
        own = Plan(entries=tuple(entry.model_copy(update={"studies": ("mine",)}) for entry in entries))
        assert [name for name in figures_of(own) if "parallelism_sweep" in name] == ["mine/parallelism_sweep"]


def test_figure_of_ones_own_study_draws_all_clusters() -> None:
    points = pd.DataFrame({"cluster": ["h200x32", "h100x64", "other"], "run": ["a", "b", "c"]})
    for name, drawn in (("parallelism_sweep", "a"), ("parallelism_sweep_h100", "b"), ("mine/parallelism_sweep", "abc")):
        assert on_cluster(points, name)["run"].sum() == drawn
    assert on_cluster(points[2:], "parallelism_sweep")["run"].tolist() == ["c"]


def test_figures_that_a_study_names_are_drawn_and_others_refused(plan: Plan) -> None:
    entry = next(entry for entry in plan.valid if "smoke" in entry.studies)
    mine = (entry.model_copy(update={"studies": ("mine",)}),)
    assert figures_of(Plan(entries=mine, figures={"mine": ("timeline",)})) == ["mine/timeline"]
    assert figures_of(Plan(entries=mine, figures={"mine": ()})) == []
    with pytest.raises(UserError, match=r"^study mine: figures: no figure 'timelin' \(did you mean 'timeline'\?\)$"):
        figures_of(Plan(entries=mine, figures={"mine": ("timelin",)}))


def test_figure_of_a_study_that_is_not_selected_says_what_makes_it(plan: Plan) -> None:
    smoke = select(CONFIG, ["smoke"], ["cpu-local"])
    require_selected(["timeline", "smoke/timeline"], smoke, CONFIG)
    told = re.escape("'snakemake figs/inference_batch.pdf --config studies=[inference]'")
    with pytest.raises(UserError, match=f"^figs/inference_batch: draws study inference.*{told}"):
        require_selected(["inference_batch"], smoke, CONFIG)
    with pytest.raises(UserError, match=r"no study 'smok' in .*did you mean 'smoke'"):
        require_selected(["smok/timeline"], smoke, CONFIG)


def test_spec_of_one_study_is_the_same_but_for_the_study() -> None:
    assert spec_of("mine/timeline").studies == ("mine",)
    assert spec_of("mine/timeline").tables == spec_of("timeline").tables


@pytest.mark.parametrize("name", ["timeline", "nothing-there/timeline"])
def test_figure_without_results_says_what_makes_them(studies: dict[str, Path], tmp_path: Path, name: str) -> None:
    study = "smoke" if name == "timeline" else "nothing-there"
    told = f"^figure {name}: study {study} has no finished run in .*'snakemake figs/{name}.pdf'$"
    with pytest.raises(UserError, match=told):
        write_figure(name, studies["smoke"], tmp_path / "figs")
    assert not (tmp_path / "figs").exists()


@pytest.mark.parametrize("name", ["thermal_heatmap", "throttling", "node_airflow", "inference_batch"])
def test_figure_without_a_point_it_can_draw_says_so(studies: dict[str, Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=FIGURES[name].need.nothing):
        write_figure(f"synthetic/{name}", studies["smoke"], tmp_path)
    assert not any(tmp_path.iterdir())
