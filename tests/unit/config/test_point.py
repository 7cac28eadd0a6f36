"""The identity of a point: when it changes, every run is launched again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.points import tiny_point
from triplepoint.config.point import Layout, Point, Steps

GOLDEN = Path(__file__).parents[2] / "golden" / "point_digest.json"


def test_digest_is_that_of_the_golden_file() -> None:
    golden = json.loads(GOLDEN.read_text())
    point = Point.model_validate(golden["point"])
    # A field added with a default changes the identity as well.
    assert point.model_dump(mode="json") == golden["point"]
    assert point.digest() == golden["digest"], (
        "the identity of points has changed: every run anybody has would be launched again. If that is meant, raise "
        "MEASUREMENT_VERSION and write the golden file anew"
    )


def test_digest_survives_json() -> None:
    point = tiny_point(trace_ranks=(0, 1), overlap=("grad",))
    assert Point.model_validate_json(point.model_dump_json()).digest() == point.digest()


def test_digest_is_the_same_in_another_process() -> None:
    code = "from tests.points import tiny_point; print(tiny_point().digest())"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == tiny_point().digest()


CHANGES: list[dict[str, Any]] = [
    {"measurement_version": 99},
    {"engine": "simulated"},
    {"layout": Layout(tp=2)},
    {"micro_batch_size": 2},
    {"recompute": "full"},
    {"recompute_layers": 1},
    {"layout": Layout(dp=2, pipeline_layers=(2,))},
    {"overlap": ("grad",)},
    {"offload": ("optim",)},
    {"precision": "bf16"},
    {"corpus": "stdlib"},
    {"seed": 1},
    {"steps": Steps(warmup=1, measured=3, profiled=1)},
    {"trace_ranks": (0,)},
    {"telemetry_period_s": 0.2},
    {"repeat": 2},
]


@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) for change in CHANGES])
def test_digest_changes_with_what_is_measured(change: dict[str, Any]) -> None:
    assert tiny_point(**change).digest() != tiny_point().digest()
