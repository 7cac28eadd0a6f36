"""One rule book: plan, predict and simulate refuse the same point with the same line."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.points import planned
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point
from triplepoint.config.rules import fold, without_effect
from triplepoint.config.study import Settings, make_points
from triplepoint.plan import _make_entry
from triplepoint.published.rows import Row, read_row
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.simulate.predict.point import predict_point

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)
GPUS = {"h200x32": "H200-SXM", "mi250x32": "MI250"}
MODELS = ("llama3-8b", "mixtral-8x7b")


def row_of(**settings: Any) -> Row:
    """Return the row of a published table with the settings of a study."""
    words = {
        "cluster": "gpu",
        "num_gpus": "n_gpus",
        "micro_batch_size": "mbs",
        "global_batch_size": "gbs",
        "sequence_length": "seq",
        "sequence_parallel": "seq_parallel",
        "data_parallel_sharding": "fsdp",
    }
    cells = {words.get(key, key): "yes" if value is True else str(value) for key, value in settings.items()}
    cells["gpu"] = GPUS[settings["cluster"]]
    if layers := settings.get("recompute_layers"):
        cells["recompute"] = f"full {layers} layers"
    return read_row(cells, 1, CONFIG)


def point_of(**settings: Any) -> Point:
    """Return the simulated point of some settings, folded."""
    checked = Settings(engine="simulated", **settings)
    model, cluster = CATALOGUE.model(settings["model"]), CATALOGUE.cluster(settings["cluster"])
    return fold(next(make_points(checked, model, cluster)))


def planned_because(point: Point) -> str | None:
    """Return what plan says about a point."""
    return _make_entry(point, CATALOGUE.cluster(point.cluster.name), CATALOGUE, "study").invalid_because


DEGREE = st.sampled_from([1, 1, 1, 2, 2, 4, 8, 16, 3])


@settings(max_examples=examples(100), deadline=None)
@given(
    common=st.fixed_dictionaries(
        {
            "model": st.sampled_from(MODELS),
            "cluster": st.sampled_from(list(GPUS)),
            "num_gpus": st.just(16),
            "global_batch_size": st.sampled_from([16, 64, 64, 48, 100, 1_000_000_000]),
            "sequence_length": st.sampled_from([4096, 4096, 4104]),
            "precision": st.sampled_from(["bf16", "bf16", "fp8"]),
            "recompute": st.sampled_from(["none", "full"]),
            "sequence_parallel": st.booleans(),
            "data_parallel_sharding": st.sampled_from(["no_shard", "optim", "optim_grads_params"]),
            "tp": DEGREE,
            "pp": DEGREE,
        }
    ),
    rare=st.fixed_dictionaries({}, optional=dict.fromkeys(("cp", "ep", "etp", "vp", "dp", "micro_batch_size"), DEGREE)),
    recompute_layers=st.none() | st.integers(1, 40),
)
def test_plan_predict_and_simulate_refuse_with_the_same_line(
    common: dict[str, Any], rare: dict[str, Any], recompute_layers: int | None
) -> None:
    given_ = common | {"micro_batch_size": 1} | rare
    if common["recompute"] == "full" and recompute_layers:
        given_["recompute_layers"] = recompute_layers
    point = point_of(**given_)
    # What can have no effect is folded in a study, and refused in a table: tests of these are elsewhere.
    assume(not without_effect(point, given_))
    num_stages = point.layout.pp * point.layout.vp
    # A published table may leave out how layers were split unevenly; a study may not.
    assume(point.model.num_layers % num_stages == 0 or point.model.num_layers < num_stages)
    reason, row = planned_because(point), row_of(**given_)
    predicted = predict_point(point, CONFIG, with_power=False)
    # Published jobs may have experts on context parallel ranks; a study may not.
    assume("on context parallel ranks" not in row.reason)
    assert row.reason == (reason or "")
    if reason is None:
        assert predicted.status in ("ok", "oom", "undecided")
        return
    assert predicted.reason == reason
    with tempfile.TemporaryDirectory() as folder:
        manifest = simulate_run(planned(point), Path(folder), CONFIG)
    assert manifest.evidence is not None
    assert (manifest.status, manifest.evidence.message) == ("invalid", reason)


def test_published_run_may_leave_out_an_uneven_split() -> None:
    given_ = {"model": "llama3-8b", "cluster": "h200x32", "num_gpus": 24, "pp": 3, "global_batch_size": 24}
    assert row_of(**given_, recompute="none", mbs=1).status is None
    reason = planned_because(point_of(**given_))
    assert reason == "num_layers 32 is not divisible by pp*vp = 3*1 = 3; set pp: 4 or give pipeline_layers"


def test_rules_find_a_micro_batch_of_a_very_large_batch_at_once() -> None:
    reason = planned_because(
        point_of(model="llama3-8b", cluster="h200x32", global_batch_size=2**31 - 32, micro_batch_size=5)
    )
    assert reason is not None and reason.endswith("set micro_batch_size: 3")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": "mixtral-8x7b", "tp": 4, "pp": 2, "ep": 8}, "dp 2 is not divisible by ep: 8; set ep: 2"),
        ({"model": "llama3-8b", "tp": 16}, "num_query_groups 8 is not divisible by tp: 16; set tp: 8"),
    ],
)
def test_predict_refuses_what_plan_refuses(changes: dict[str, Any], line: str) -> None:
    given_ = {"cluster": "h200x32", "num_gpus": 16, "global_batch_size": 64, "sequence_parallel": True} | changes
    assert (row_of(**given_).reason, planned_because(point_of(**given_))) == (line, line)
