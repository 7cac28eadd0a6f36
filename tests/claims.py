"""Made-up results and claims for tests of verdicts."""

from pathlib import Path
from typing import Any

import yaml

from triplepoint.config.point import DEFAULTS
from triplepoint.tables.results import GPUS, POINTS
from triplepoint.verdicts.judge import judge_claims

FIGURE = {
    "file": "made_up",
    "source": "figure 1",
    "name": "{layout}, micro-batch {mbs}",
    "settings": {"model": "tiny-gpt"},
    "keys": {"layout": {"A": {"tp": 1}, "B": {"tp": 2}, "C": {"tp": 4}}, "mbs": "micro_batch_size"},
}


def point(run: str, origin: str = "simulated", **columns: Any) -> dict[str, Any]:
    """Return a row of table `points`. Columns that are not given have the default of the setting, otherwise null."""
    settings = {name: value for name, value in DEFAULTS.items() if name in {column.name for column in POINTS.columns}}
    lists = {column.name: [] for column in POINTS.columns if column.type == "names"}
    row: dict[str, Any] = dict.fromkeys((column.name for column in POINTS.columns), None) | settings | lists
    row |= {"run": run, "origin": origin, "status": "ok", "model": "tiny-gpt", "cluster": "h200x32", "engine": origin}
    return row | {"num_gpus": 8, "repeat": 1} | columns


def gpu(run: str, node: int, device: int, **columns: Any) -> dict[str, Any]:
    """Return a row of table `gpus`."""
    row: dict[str, Any] = dict.fromkeys((column.name for column in GPUS.columns), None)
    return row | {"run": run, "rank": 8 * node + device, "node": node, "device": f"gpu{device}"} | columns


def kernel(run: str, kind: str, sum_s: float) -> dict[str, Any]:
    """Return a row of table `kernels`, which is communication unless its kind is `gemm`."""
    return {"run": run, "class": "gemm" if kind == "gemm" else "comm", "kind": kind, "sum_s": sum_s}


def configure(folder: Path, claims: list[dict[str, Any]], figure: str = "", **more: Any) -> Path:
    """Write a configuration with claims and a figure; return its folder.

    Args:
        folder: Folder to write into.
        claims: Claims.
        figure: Content of the figure's CSV file.
        more: Other members of claims.yaml.
    """
    content: dict[str, Any] = {"study": "a made-up study", "rear_slots": [0, 3], "front_slots": [1, 2]}
    content |= {"figures": {"one": FIGURE}, "claims": claims} | more
    published = folder / "published"
    (published / "figures").mkdir(parents=True)
    (published / "claims.yaml").write_text(yaml.safe_dump(content))
    (published / "figures" / "made_up.csv").write_text(figure)
    return folder


def judge(config: Path, points: list[dict], gpus: list[dict] | None = None, kernels: list[dict] | None = None) -> list:
    """Return the rows of table `claims`."""
    return judge_claims(config, {"points": points, "gpus": gpus or [], "kernels": kernels or []})
