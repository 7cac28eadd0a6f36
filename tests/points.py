"""Small points for tests that launch or plan."""

from functools import cache
from pathlib import Path
from typing import Any

from triplepoint.config.model import ModelConfig
from triplepoint.config.plan import Limits, Plan, PlannedRun
from triplepoint.config.point import Layout, Point, PointCluster, Steps
from triplepoint.config.rules import engine_revision, refusal
from triplepoint.launch.engines import get_engine
from triplepoint.plan import select

TINY = ModelConfig(
    name="test-llama",
    source="made for the tests",
    num_layers=2,
    hidden_size=32,
    ffn_hidden_size=64,
    num_attention_heads=4,
    num_query_groups=2,
    vocab_size=256,
    sequence_length=32,
    activation="swiglu",
    normalization="rmsnorm",
    position_embedding="rope",
)


def tiny_point(**changes: Any) -> Point:
    """Return a data-parallel point of two ranks with steps well below a second.

    Args:
        changes: Fields of the point to change.
    """
    fields: dict[str, Any] = {
        "model": TINY,
        "cluster": PointCluster(name="cpu-local", device="cpu", gpu=None, gpus_per_node=8),
        "engine": "native",
        "num_gpus": 2,
        "layout": Layout(dp=2),
        "micro_batch_size": 1,
        "global_batch_size": 4,
        "sequence_length": 32,
        "precision": "fp32",
        "steps": Steps(warmup=1, measured=2, profiled=1),
        "telemetry_period_s": 0.05,
    }
    return Point(**(fields | changes))


@cache
def simulated_plan(*clusters: str) -> Plan:
    """Return the plan of the shipped studies that simulates clusters; it is made once for all tests."""
    return select(Path(__file__).parents[1] / "config", None, ["cpu-local"], clusters)


def planned(point: Point, run: str = "tiny", **limits: Any) -> PlannedRun:
    """Return a point as a run that can be launched on this machine.

    Args:
        point: The point.
        run: Name of the run.
        limits: Limits to change.
    """
    settings = {"executor": "local", "time_limit_s": 120.0, "hang_timeout_s": 60.0} | limits
    return PlannedRun(run=run, digest=point.digest(), point=point, limits=Limits(**settings))


def write_run(results: Path, run: PlannedRun) -> Path:
    """Write `point.json` below `results` and return the run's folder."""
    folder = results / "runs" / run.run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "point.json").write_text(run.model_dump_json())
    return folder


def refused(point: Point) -> str | None:
    """Return the reason why the engine of a point cannot run it, None if it can."""
    point = point.model_copy(update={"engine_revision": engine_revision(point)})
    return refusal(point, limits=get_engine(point.engine).LIMITS)
