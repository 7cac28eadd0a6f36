"""Names and order of points in figures."""

from pathlib import Path

import pytest

from tests.synthetic import CONFIG, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.figures import labels


def prepared(folder: Path, *specs: Spec):
    aggregate(build(folder, specs), folder, CONFIG)
    return labels.prepare(read_tables(folder)["points"].to_pandas())


@pytest.mark.parametrize(
    ("layout", "label"),
    [
        ({}, "1 rank"),
        ({"dp": 2}, "DP2"),
        ({"tp": 2, "pp": 2, "schedule": "1f1b"}, "TP2·PP2"),
        ({"dp": 2, "data_parallel_sharding": "optim_grads_params"}, "FSDP2"),
        ({"dp": 2, "data_parallel_sharding": "optim"}, "DP2 ZeRO-1"),
    ],
)
def test_prepare_names_layout(tmp_path: Path, layout: dict, label: str) -> None:
    assert prepared(tmp_path, Spec("tiny-llama", layout))["layout"].tolist() == [label]


def test_prepare_tells_schedules_apart_only_where_needed(tmp_path: Path) -> None:
    points = prepared(
        tmp_path,
        Spec("tiny-llama", {"pp": 2, "schedule": "gpipe"}),
        Spec("tiny-llama", {"pp": 2, "schedule": "1f1b"}, repeat=2),
        Spec("tiny-llama", {"pp": 4, "schedule": "1f1b"}),
    )
    assert sorted(points["layout"]) == ["PP2 1F1B", "PP2 GPipe", "PP4"]


def test_prepare_orders_layouts_as_numbers(tmp_path: Path) -> None:
    specs = [Spec("tiny-llama", {"dp": dp}, status="oom") for dp in (8, 16, 2, 4)]
    assert prepared(tmp_path, *specs)["layout"].tolist() == ["DP2", "DP4", "DP8", "DP16"]


def test_common_setting_prefers_coverage_then_no_recompute(tmp_path: Path) -> None:
    layouts = [{"dp": 2}, {"tp": 2}]
    specs = [
        Spec("tiny-llama", layout, mbs, recompute=how) for layout in layouts for mbs, how in ((1, "full"), (2, "none"))
    ]
    extra = Spec("tiny-llama", layouts[0], 4)
    chosen = labels.common_setting(prepared(tmp_path, *specs, extra))
    assert set(chosen["recompute"]) == {"none"}
    assert chosen["micro_batch_size"].tolist() == [2, 2]


def test_common_setting_is_blind_to_outcomes(tmp_path: Path) -> None:
    specs = [Spec("tiny-llama", {"dp": 2}, status="oom"), Spec("tiny-llama", {"dp": 2}, recompute="full")]
    assert labels.common_setting(prepared(tmp_path, *specs))["status"].tolist() == ["oom"]
