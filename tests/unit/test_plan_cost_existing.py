import json
from pathlib import Path

import pytest

from tests.points import planned, tiny_point
from triplepoint.plan_cost import Existing, find_existing, typical_duration_s

PLANNED = planned(tiny_point())


def write_manifest(results: Path, where: str, **changes: object) -> None:
    path = results / "runs" / "tiny" / where / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"digest": PLANNED.digest, "status": "ok", "duration_s": 7.5} | changes))


def test_find_existing_nothing_is_missing(tmp_path: Path) -> None:
    assert find_existing(PLANNED, tmp_path) == Existing("missing")


@pytest.mark.parametrize("status", ["ok", "oom", "invalid"])
def test_find_existing_result_of_this_point_is_done(tmp_path: Path, status: str) -> None:
    write_manifest(tmp_path, "raw", status=status)
    assert find_existing(PLANNED, tmp_path) == Existing("done", status, 7.5)


def test_find_existing_result_of_another_point_is_none(tmp_path: Path) -> None:
    write_manifest(tmp_path, "raw", digest="0" * 64)
    assert find_existing(PLANNED, tmp_path) == Existing("failed", "damaged")


def test_find_existing_last_attempt_tells_why_it_failed(tmp_path: Path) -> None:
    write_manifest(tmp_path, "attempts/20260101T000000-1", status="crashed")
    write_manifest(tmp_path, "attempts/20260102T000000-1", status="timeout")
    assert find_existing(PLANNED, tmp_path) == Existing("failed", "timeout")


def test_find_existing_damaged_manifest_is_no_result(tmp_path: Path) -> None:
    write_manifest(tmp_path, "raw")
    (tmp_path / "runs/tiny/raw/manifest.json").write_text('{"digest": "')
    assert find_existing(PLANNED, tmp_path) == Existing("failed", "damaged")


def test_typical_duration_is_the_median_of_those_that_ended_well() -> None:
    found = [Existing("done", "ok", duration) for duration in (1.0, 9.0, 2.0)] + [Existing("done", "oom", 50.0)]
    assert typical_duration_s(found) == 2.0
    assert typical_duration_s(found[3:]) is None
