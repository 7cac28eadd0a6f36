"""A launch whose ranks have finished is never lost and never measured again, whatever ends the launcher."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attempts import WALL_NS, fill, leave, tiny_run
from tests.points import write_run
from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.launch import collect
from triplepoint.launch import launch_run as launching
from triplepoint.launch.attempt import REPLACED
from triplepoint.launch.collect import conclude
from triplepoint.launch.launch_run import LaunchFailed, install, launch
from triplepoint.manifest import Manifest, read_manifest, write_manifest
from triplepoint.tables import STEPS

RUN = tiny_run()


class FakeGang:
    """A gang that has finished, or never will, the moment it is started."""

    started = 0
    cancelled = 0
    finishes = True
    on_poll: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, raw: Path) -> None:
        FakeGang.started += 1
        if FakeGang.finishes:
            fill(raw, read_planned_run(raw / "point.json"))

    def is_over(self) -> bool:
        FakeGang.on_poll()
        return True

    def cancel(self) -> None:
        FakeGang.cancelled += 1


@pytest.fixture(autouse=True)
def gang(monkeypatch: pytest.MonkeyPatch) -> type[FakeGang]:
    for name, value in {"started": 0, "cancelled": 0, "finishes": True}.items():
        monkeypatch.setattr(FakeGang, name, value)
    monkeypatch.setattr(launching, "LocalGang", FakeGang)
    monkeypatch.setattr(launching, "_ignore_signals", lambda: None)
    return FakeGang


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path, RUN)


def launched(folder: Path, force: bool = False) -> tuple[Manifest, list[str]]:
    said: list[str] = []
    return launch(folder, said.append, force), said


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "manifest.json")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def damage(*_: object) -> None:
    raise UserError("steps.parquet: not what it should be")


def test_launch_killed_before_collecting_is_collected(folder: Path, gang: type[FakeGang]) -> None:
    leave(folder, RUN)
    manifest, said = launched(folder)
    assert manifest.status == "ok"
    assert gang.started == 0
    assert any("collecting what a launch left" in line for line in said)
    assert not (folder / "attempts").exists()


def test_launch_killed_between_manifest_and_move_is_installed(folder: Path, gang: type[FakeGang]) -> None:
    done = conclude(leave(folder, RUN), RUN)
    manifest, _ = launched(folder)
    assert manifest == done == read_manifest(folder / "raw" / "manifest.json")
    assert gang.started == 0


@pytest.mark.parametrize("content", [None, "", '{"run": "ti'], ids=["missing", "empty", "cut-off"])
@pytest.mark.parametrize("with_steps", [True, False])
def test_launch_unreadable_manifest_is_made_again(
    folder: Path, gang: type[FakeGang], content: str | None, with_steps: bool
) -> None:
    raw = leave(folder, RUN)
    if not with_steps:
        conclude(raw, RUN)
        (raw / "manifest.json").unlink()
    raw.rename(folder / "raw")
    if content is not None:
        (folder / "raw" / "manifest.json").write_text(content)
    assert launched(folder)[0].status == "ok"
    assert gang.started == 0
    assert read_manifest(folder / "raw" / "manifest.json").facts["num_steps_finished"] == 4


def test_launch_unreadable_manifest_of_nothing_whole_is_measured(folder: Path, gang: type[FakeGang]) -> None:
    (folder / "raw").mkdir()
    (folder / "raw" / "manifest.json").touch()
    assert launched(folder)[0].status == "ok"
    assert gang.started == 1


def test_launch_raw_that_lost_its_steps_gets_no_manifest_of_a_failure(
    folder: Path, gang: type[FakeGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = leave(folder, RUN)
    shutil.rmtree(raw / "steps")
    raw.rename(folder / "raw")
    monkeypatch.setattr(gang, "finishes", False)
    with pytest.raises(LaunchFailed):
        launched(folder)
    assert gang.started == 1
    assert not (folder / "raw" / "manifest.json").exists()


def test_launch_attempt_of_another_point_is_not_taken(folder: Path, gang: type[FakeGang]) -> None:
    leave(folder, tiny_run(micro_batch_size=2))
    assert launched(folder)[0].digest == RUN.digest
    assert gang.started == 1


@pytest.mark.parametrize(
    ("trouble", "error"), [(full_disk, OSError), (interrupt, KeyboardInterrupt), (damage, UserError)]
)
@pytest.mark.parametrize("where", ["write_manifest", "_gather_steps"])
def test_launch_trouble_in_collecting_keeps_the_attempt(
    folder: Path,
    gang: type[FakeGang],
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[..., None],
    error: type[BaseException],
    where: str,
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(collect, where, trouble)
        with pytest.raises(error):
            launch(folder, said.append)
    assert said[-1].startswith("tiny: all ranks had finished; kept in ")
    assert gang.cancelled == 0
    assert launched(folder)[0].status == "ok"
    assert gang.started == 1


def test_launch_interrupted_while_the_gang_ends_keeps_the_attempt(
    folder: Path, gang: type[FakeGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(gang, "on_poll", staticmethod(interrupt))
        with pytest.raises(KeyboardInterrupt):
            launched(folder)
    assert launched(folder)[0].status == "ok"
    assert (gang.started, gang.cancelled) == (1, 0)


def test_launch_interrupted_before_reports_discards(
    folder: Path, gang: type[FakeGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "finishes", False)
    monkeypatch.setattr(gang, "on_poll", staticmethod(interrupt))
    with pytest.raises(KeyboardInterrupt):
        launched(folder)
    assert gang.cancelled == 1
    assert list((folder / "attempts").iterdir()) == []


def test_launch_claim_lost_leaves_the_other_ones_result(
    folder: Path, gang: type[FakeGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take() -> None:
        shutil.rmtree(folder / ".claim")

    monkeypatch.setattr(gang, "on_poll", staticmethod(take))
    with pytest.raises(UserError, match="claim .* was removed"):
        launched(folder)
    assert not (folder / "raw").exists()
    monkeypatch.undo()
    assert launched(folder)[0].status == "ok"


def test_launch_newer_attempt_takes_the_place_of_an_older_result(folder: Path) -> None:
    old = leave(folder, RUN)
    conclude(old, RUN)
    install(old, folder / "raw", print)
    newer = conclude(leave(folder, RUN, wall_ns=WALL_NS + 10**12), RUN)
    assert launched(folder)[0] == newer
    assert not (folder / "attempts").exists()


def test_launch_older_attempt_leaves_a_newer_result(folder: Path) -> None:
    new = leave(folder, RUN)
    kept = conclude(new, RUN)
    install(new, folder / "raw", print)
    conclude(leave(folder, RUN, wall_ns=WALL_NS - 10**12), RUN)
    assert launched(folder)[0] == kept


def test_launch_killed_between_two_moves(folder: Path, gang: type[FakeGang]) -> None:
    """What stood in `raw` is at the side already, and its successor not yet in place."""
    old = leave(folder, RUN)
    conclude(old, RUN)
    install(old, folder / "raw", print)
    raw = leave(folder, RUN, wall_ns=WALL_NS + 10**12)
    newer = conclude(raw, RUN)
    (folder / "raw").rename(raw.with_name(raw.name + REPLACED))
    assert launched(folder)[0] == newer
    assert gang.started == 0
    assert not (folder / "attempts").exists()


def test_install_of_an_attempt_that_has_gone_changes_nothing(folder: Path) -> None:
    old = leave(folder, RUN)
    conclude(old, RUN)
    install(old, folder / "raw", print)
    with pytest.raises(FileNotFoundError):
        install(folder / "attempts" / "gone", folder / "raw", print)
    assert read_manifest(folder / "raw" / "manifest.json").status == "ok"


def test_launch_manifest_written_before_reads(folder: Path, gang: type[FakeGang]) -> None:
    raw = leave(folder, RUN)
    content = conclude(raw, RUN).model_dump()
    for node in content["nodes"]:
        del node["telemetry_absent"], node["sampler_ends"]
    write_manifest(raw / "manifest.json", Manifest(**content))
    install(raw, folder / "raw", print)
    assert launched(folder)[1] == [f"tiny: already measured (ok, {content['ended_at']}); kept"]
    assert gang.started == 0


@pytest.mark.parametrize("damaged", ["manifest.json", "steps.parquet"])
def test_launch_keeps_a_damaged_result_that_it_replaces(folder: Path, damaged: str) -> None:
    launched(folder)
    path = folder / "raw" / damaged
    path.write_bytes(path.read_bytes()[:40])
    shutil.rmtree(folder / "raw" / "nodes")  # without the reports nothing can be collected again
    (folder / "raw" / "note").write_text("old")
    manifest, said = launched(folder, force=True)
    (kept,) = folder.glob("raw.damaged-*")
    assert (kept / "note").read_text() == "old" and (kept / damaged).stat().st_size == 40
    assert any(f"kept as {kept}" in line for line in said)
    assert manifest.status == "ok" and STEPS.read(folder / "raw" / "steps.parquet").num_rows
    launched(folder, force=True)
    assert list(folder.glob("raw.damaged-*")) == [kept], "a whole result is replaced as before"
