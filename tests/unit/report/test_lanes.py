"""Timelines in the page: what is embedded comes back, in the room there is, and is drawn where it belongs."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from triplepoint.report.lanes import EmbeddedLanes, embed_lanes
from triplepoint.tables.results import RUN_TIMELINE

TEMPLATES = Path(__file__).parents[3] / "src" / "triplepoint" / "report" / "templates"
MS = 1_000_000


def point(run: str, origin: str = "measured") -> dict[str, Any]:
    return {"run": run, "model": "tiny", "origin": origin}


def span(
    start_ms: float, end_ms: float, lane: str = "phase", label: str = "forward", rank: int = 0, **more: Any
) -> dict:
    row = {"run": "a", "rank": rank, "lane": lane, "label": label, **more}
    return row | {"t_start_ns": int(start_ms * MS), "duration_ns": int((end_ms - start_ms) * MS)}


def embed(rows: list[dict], points: list[dict] | None = None, **limits: int) -> EmbeddedLanes:
    return embed_lanes(points or [point("a")], RUN_TIMELINE.from_rows(rows), Path("results"), **limits)


def decoded(run: dict[str, Any]) -> list[tuple]:
    """Return (rank, lane, label, group, stage, microbatch, start ms, end ms) of all spans of an embedded run."""
    found = []
    for rank, gaps, lengths, looks in run["lanes"]:
        ends = np.cumsum(np.array(gaps) + np.array(lengths))
        for end, length, look in zip(ends.tolist(), lengths, looks, strict=True):
            times = [round(time * run["unit_ns"] / MS, 4) for time in (end - length, end)]
            found.append((rank, *run["looks"][look], *times))
    return found


def test_embed_lanes_come_back_as_they_were() -> None:
    rows = [
        span(0, 400, stage=1, microbatch=0),
        span(400, 1000, label="backward", stage=1, microbatch=0),
        span(100, 250, "comm", "all_reduce", group="dp"),
        span(20, 30, "comm", "send", rank=10, group="pp"),
        span(30, 40, "memory", "dtoh", rank=2),
    ]
    (run,) = json.loads(embed(rows).text)
    assert sorted(decoded(run)) == [
        (0, "comm", "all_reduce", "dp", None, None, 100, 250),
        (0, "phase", "backward", None, 1, 0, 400, 1000),
        (0, "phase", "forward", None, 1, 0, 0, 400),
        (2, "memory", "dtoh", None, None, None, 30, 40),
        (10, "comm", "send", "pp", None, None, 20, 30),
    ]
    assert [lane[0] for lane in run["lanes"]] == [0, 0, 2, 10], "ranks in numeric order"
    assert run["end"] * run["unit_ns"] == 1000 * MS


def test_embed_lanes_only_runs_with_spans_and_says_which_are_simulated(tmp_path: Path) -> None:
    rows = [span(0, 1), span(0, 1) | {"run": "c"}]
    points = [point("a"), point("b"), point("c", "simulated")]
    (tmp_path / "runs/c").mkdir(parents=True)
    assert embed_lanes(points, RUN_TIMELINE.from_rows(rows), tmp_path).trace == f"{tmp_path}/runs/RUN/raw/traces/"
    (tmp_path / "runs/c/perfetto.json.gz").touch()
    found = embed_lanes(points, RUN_TIMELINE.from_rows(rows), tmp_path)
    runs = json.loads(found.text)
    assert [(run["run"], run["origin"], run["trace"]) for run in runs] == [
        ("a", "measured", None),
        ("c", "simulated", f"{tmp_path}/runs/c/perfetto.json.gz"),
    ]
    assert found.trace == f"{tmp_path}/runs/RUN/perfetto.json.gz"


def test_embed_lanes_of_no_run_is_an_empty_list() -> None:
    found = embed_lanes([point("a")], RUN_TIMELINE.schema().empty_table(), Path("results"))
    assert (found.text, found.num_runs, found.left_out) == ("[]", 0, [])


def test_embed_lanes_hostile_label_cannot_end_the_script() -> None:
    text = embed([span(0, 1, label="</script><script>alert(1)</script>")]).text
    assert "<" not in text
    assert json.loads(text)[0]["looks"][0][1] == "</script><script>alert(1)</script>"


def noisy(runs: list[str], num_spans: int) -> pa.Table:
    """Return short spans of many labels, in every run the same."""
    rows = [span(k, k + 0.9, "compute", f"kernel{k % 3}") | {"run": run} for run in runs for k in range(num_spans)]
    return RUN_TIMELINE.from_rows(rows)


def cells(found: EmbeddedLanes) -> dict[str, int]:
    return {run["run"]: run["cells"] for run in json.loads(found.text)}


def test_embed_lanes_large_ones_are_thinned_further_before_any_is_left_out() -> None:
    points = [point("a"), point("b"), point("c")]
    rows = pa.concat_tables([noisy(["a", "b"], 6000), noisy(["c"], 10)])
    full = embed_lanes(points, rows, Path("results"))
    assert cells(full) == {"a": 8000, "b": 8000, "c": 8000}
    room = len(full.text) // 2
    half = embed_lanes(points, rows, Path("results"), room)
    assert len(half.text) <= room
    assert half.left_out == []
    assert cells(half)["c"] == 8000
    assert cells(half)["a"] == cells(half)["b"] < 8000


def test_embed_lanes_that_never_fit_are_named_and_smaller_ones_kept() -> None:
    rows = pa.concat_tables([noisy(["a", "b"], 6000), noisy(["c"], 10)])
    one = embed_lanes([point("a")], rows, Path("results"), 10)
    assert (one.text, one.num_runs, one.left_out) == ("[]", 0, ["a"])
    smallest = (
        size for size in range(1000, 10**6, 500) if embed_lanes([point("a")], rows, Path("results"), size).num_runs
    )
    room = next(smallest) + 500
    found = embed_lanes([point("a"), point("b"), point("c")], rows, Path("results"), room)
    assert (list(cells(found)), found.left_out) == (["a", "c"], ["b"])
    assert cells(found)["a"] == 500
    assert len(found.text) <= room


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed: the page's script is not run")
def test_zoom_script_draws_boxes_where_spans_are_and_keys_zoom(tmp_path: Path) -> None:
    rows = [span(0, 500), span(500, 1000, label="backward"), span(250, 750, "comm", "all_reduce", rank=1)]
    script = "".join(
        (TEMPLATES / name).read_text().split("#}\n", 1)[1] for name in ("zoom_draw.html", "zoom_move.html")
    )
    stub = (Path(__file__).parent / "page_stub.js").read_text()
    (tmp_path / "page.js").write_text(stub.replace("/*DATA*/", embed(rows).text).replace("/*SCRIPT*/", script))
    assert NODE is not None
    done = subprocess.run([NODE, tmp_path / "page.js"], capture_output=True, text=True, check=True)
    whole, zoomed, told = json.loads(done.stdout)
    # 1066 px wide, 66 of them for names: 1 ms is 1 px. A box leaves its last pixel free.
    assert whole == [["#56B4E9", 66, 565], ["#0072B2", 566, 1065], ["#D55E00", 316, 815]]
    # Plus shows the middle two thirds, from 166.667 to 833.333 ms: 1 ms is 1.5 px; cut off two pixels outside.
    assert zoomed == [["#56B4E9", 64, 565], ["#0072B2", 566, 1067], ["#D55E00", 191, 940]]
    assert told == ["all_reduce", "500.000 ms, from 250.000 ms", "rank 1, communication"]
