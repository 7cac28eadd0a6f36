"""Points that differ never share a place in a figure: over all studies, and one key at a time."""

from typing import Any

import pandas as pd
import pytest

from tests.synthetic import CONFIG, H200, Spec
from triplepoint.aggregate.points import unfinished_row
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlanEntry, run_id
from triplepoint.figures import inference_batch, labels
from triplepoint.plan import select
from triplepoint.tables.results import POINTS
from triplepoint.tables.variants import find_variants

CLUSTERS = sorted(path.stem for path in (CONFIG / "clusters").glob("*.yaml"))


def table(entries: list[PlanEntry]) -> pd.DataFrame:
    """Table `points` of a plan of which nothing was launched."""
    variants = find_variants(entries)
    rows = [
        unfinished_row(entry, None) | {"reason": "not run", "variant": variants.get(entry.run)} for entry in entries
    ]
    return POINTS.from_rows(rows).to_pandas()


def twins(points: pd.DataFrame, place: list[str]) -> list[tuple[str, str]]:
    """Runs in one place of a figure, other than repeats of one another."""
    label = points["run"].str.replace(r"_r\d+_[0-9a-f]{6}$", "", regex=True)
    alone = points.assign(measurement=label + " " + points["variant"].fillna(""))
    found = alone.groupby(place, dropna=False)["measurement"].unique()
    return [tuple(runs) for runs in found if len(runs) > 1]


def check(points: pd.DataFrame) -> None:
    """Hold the places that figures give points against the points."""
    trained, served = points[points["task"] != "inference"], points[points["task"] == "inference"]
    for name, members in () if trained.empty else labels.prepare(trained).groupby("group", sort=False):
        assert twins(labels.choose(members), ["layout"]) == [], f"maps, kernel_breakdown: {name}"
        assert twins(labels.common_setting(members), ["layout"]) == [], f"parallelism_sweep: {name}"
        swept = labels.common_setting(members, free=("micro_batch_size",))
        assert twins(swept, ["layout", "micro_batch_size"]) == [], f"microbatch_power: {name}"
    if not served.empty:
        numbers = inference_batch.with_lines(labels.prepare(served))
        assert twins(numbers, ["panel", "line", "global_batch_size"]) == []


@pytest.mark.parametrize("simulated", [[], [name for name in CLUSTERS if Catalogue(CONFIG).cluster(name).gpu]])
def test_no_two_points_of_shipped_studies_share_a_place(simulated: list[str]) -> None:
    plan = select(CONFIG, None, None, simulated)
    assert len(plan.entries) > 150
    check(table(list(plan.entries)))


LORA: dict[str, Any] = {"task": "lora", "lora": {"rank": 8, "alpha": 16.0, "targets": ("linear_qkv",)}}
SERVED: dict[str, Any] = {"task": "inference", "inference": {"prompt_tokens": 64, "output_tokens": 8}}


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (LORA, LORA | {"lora": LORA["lora"] | {"targets": ("linear_qkv", "linear_proj")}}),
        (LORA, LORA | {"lora": LORA["lora"] | {"rank": 16}}),
        (LORA, {}),
        ({}, {"precision": "fp8"}),
        ({}, {"samples": "padded"}),
        ({}, {"seed": 7}),
        ({}, {"offload": ("optim",)}),
        ({}, {"overlap": ("tp",)}),
        ({}, {"overlap": ("tp",), "offload": ("optim",)}),
        ({}, {"recompute": "full"}),
        ({"recompute": "full"}, {"recompute": "full", "recompute_layers": 4}),
        ({}, {"sequence_length": 4096}),
        ({}, {"global_batch_size": 64}),
        ({}, {"micro_batch_size": 2}),
        ({}, {"layout": {"tp": 8, "sequence_parallel": True}}),
        ({"layout": {"pp": 8}}, {"layout": {"pp": 8, "pipeline_layers": (9, 10, 10, 10, 10, 10, 10, 11)}}),
        ({"layout": {"pp": 8, "schedule": "1f1b"}}, {"layout": {"pp": 8, "schedule": "gpipe"}}),
        (SERVED, SERVED | {"inference": {"prompt_tokens": 64, "output_tokens": 9}}),
        (SERVED, SERVED | {"seed": 7}),
        (SERVED, SERVED | {"precision": "fp8"}),
        (SERVED, SERVED | {"steps": {"measured": 7}}),
        ({}, {"steps": {"measured": 7}}),
        ({}, {"corpus": "stdlib"}),
    ],
    ids=str,
)
def test_points_that_differ_in_one_key_are_told_apart(usual: dict, other: dict) -> None:
    point = Spec("llama3-70b", {"tp": 8}, cluster=H200).point()
    made = [type(point).model_validate(point.model_dump() | change) for change in (usual, other)]
    plan = select(CONFIG, ["parallelism"], None, ["h200x32", "h100x64"])
    entries = []
    for one in made:
        planned = plan.entries[0].planned.model_copy(update={"point": one, "run": run_id(one)})
        changed = {"planned": planned, "run": planned.run, "invalid_because": "not run"}
        entries.append(plan.entries[0].model_copy(update=changed))
    assert entries[0].run != entries[1].run
    check(table(entries))
