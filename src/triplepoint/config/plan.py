"""What a study came to: `plan.json` for the selection, `point.json` for each run, and the run ids."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from triplepoint.config import RUN_PATTERN
from triplepoint.config.base import Featured, Setting, Strict, read_json, write
from triplepoint.config.choices import ModelChoices
from triplepoint.config.cluster import Slots
from triplepoint.config.point import SETTINGS, Layout, Measured, Point, canonical, settings_of
from triplepoint.errors import UserError

_ADVICE = "write it with 'triplepoint plan --write'"
_ADVICE_RECORDED = "no plan has a recorded or imported run: put back a copy of the file, or remove the run's folder"

RunId = Annotated[str, Field(pattern=RUN_PATTERN)]


class Limits(Featured):
    """How a run is launched and given up; no part of what it measures, so changing it re-launches nothing."""

    features: ClassVar[frozenset[str]] = frozenset({"slots"})

    executor: Literal["local", "slurm"]
    """How the gang is launched."""
    time_limit_s: float
    """Wall time after which it is ended. Unit: s."""
    hang_timeout_s: float
    """Time without progress after which it is ended. Unit: s."""
    fast_telemetry_period_s: float = 0.05
    """Time between samples of the GPUs' fast sensors. Unit: s."""
    slots: Slots | None = None
    """Physical slots of a node's devices, as `cluster.slots`."""


class PlannedRun(Strict):
    """One run ready to launch: the content of `results/runs/<run>/point.json`."""

    run: RunId
    """Readable label; facts are in `point`."""
    digest: str
    """`Point.digest()` of `point`."""
    point: Point
    """What is measured."""
    limits: Limits
    """How it is launched."""


class PlanEntry(Strict):
    """One point of the selection, launched or not."""

    run: RunId
    """Readable label."""
    studies: tuple[str, ...]
    """Studies that contain the point."""
    invalid_because: str | None
    """Why it cannot run; None if it can."""
    planned: PlannedRun
    """The point and its limits."""


class Plan(Strict):
    """All points of the selected studies, without duplicates: the content of `results/plan.json`."""

    entries: tuple[PlanEntry, ...]
    """In the order of the studies."""
    num_folded: Annotated[int, Field(ge=0)] = 0
    """Points left out because the same study has an equal one, once settings that can do nothing are taken out."""
    figures: dict[str, tuple[str, ...]] = {}
    """Figures to draw of each study alone, of those whose files name some."""
    order: dict[str, tuple[RunId, ...]] = {}
    """Run ids of each study in its own order: that of the entries, unless a study before it has some of its points."""

    @property
    def valid(self) -> list[PlanEntry]:
        """Entries that can be launched."""
        return [entry for entry in self.entries if entry.invalid_because is None]

    @property
    def studies(self) -> tuple[str, ...]:
        """Studies that have an entry, in the order of the entries."""
        return tuple(dict.fromkeys(study for entry in self.entries for study in entry.studies))

    def of_study(self, study: str) -> "Plan":
        """Return the plan of one study, the same whatever other studies are selected with it."""
        mine = {entry.run: entry for entry in self.entries if study in entry.studies}
        order = self.order.get(study, tuple(mine))
        return Plan(entries=tuple(mine[run].model_copy(update={"studies": (study,)}) for run in order if run in mine))

    def text(self) -> str:
        """Return the content of the file."""
        return self.model_dump_json(indent=2) + "\n"

    def digest(self) -> str:
        """Return the identity of the plan: SHA-256 over all that is written of it, limits too."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()


def read_plan(path: Path) -> Plan:
    """Return the plan in `plan.json`. Raises `UserError` if it is missing or damaged."""
    return read_json(Plan, path, _ADVICE)


def read_planned_run(path: Path) -> PlannedRun:
    """Return the run in `point.json`.

    Raises:
        UserError: If it is missing or damaged, or its digest is not that of its point.
    """
    try:
        planned = read_json(PlannedRun, path, _ADVICE)
    except UserError as error:
        if not _is_recorded(path.parent):
            raise
        raise UserError(f"{str(error).removesuffix('; ' + _ADVICE)}; {_ADVICE_RECORDED}") from None
    if planned.digest != planned.point.digest():
        raise UserError(
            f"{path}: the digest does not match the point, so the file was edited; change the study instead and plan "
            "again"
        )
    return planned


def _is_recorded(run: Path) -> bool:
    """Return whether the manifest in a run's folder says that it was recorded or imported."""
    try:
        return bool(json.loads((run / "raw" / "manifest.json").read_text(encoding="utf-8"))["engine"] == "recorded")
    except (OSError, ValueError, KeyError, TypeError):
        return False


DIGEST_DIGITS = 6
"""Of the digest in a run id: enough for the points of one label. Stages compare whole digests."""
_MOST_LABEL = 180
"""Longest label. File systems take names of 255 bytes, and logs and scratch files add to them. Unit: character."""


def run_id(point: Point, digest: str | None = None) -> str:
    """Return the name of a run, such as `llama3-70b_h200x32_tp4-pp4-dp2_mbs1_act_r1_3f9a01`: label and digest.

    The digest makes the name that of one point only. A changed point is another run beside the first, whose results
    are kept, and found again when the change is taken back.

    Args:
        point: What the run measures.
        digest: That of the point, where it is known already.
    """
    return f"{run_label(point)[:_MOST_LABEL]}_{(digest or point.digest())[:DIGEST_DIGITS]}"


def run_label(point: Point) -> str:
    """Return the label of a point, such as `llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_r1`.

    Model, cluster, layout and repeat are always there, and of the settings those that are not as usual, see `Setting`.
    A label is not parsed: facts are in `point.json`.
    """
    values = settings_of(point)
    layout, texts = "-".join(_texts(point, _IN_LAYOUT, values)), _texts(point, _IN_LABEL, values)
    parts = [point.model.name, point.cluster.name, layout, *texts, f"r{point.repeat}"]
    return "_".join(part for part in parts if part)


def layout_label(point: Point) -> str:
    """Return the degrees and switches of a point's layout, such as `tp2-pp2-dp8-ep8-sp-zero1`."""
    return "-".join(_texts(point, _IN_LAYOUT, settings_of(point)))


def _labelled(names: Iterable[str]) -> dict[str, Setting]:
    return {name: SETTINGS[name] for name in names if SETTINGS[name].label is not None}


_IN_LAYOUT = _labelled(name for name in Layout.model_fields if name != "schedule")
_IN_LABEL = _labelled(["schedule", *Measured.model_fields, *ModelChoices.model_fields])
"""Settings with a text in run ids."""


def _texts(point: Point, settings: Mapping[str, Setting], values: Mapping[str, Any]) -> list[str]:
    """Return the texts of settings that are not as usual."""
    texts = []
    for name, setting in settings.items():
        usual = setting.usual(point) if callable(setting.usual) else setting.usual
        if (usual is None or values[name] != usual) and point.knows(name):
            texts.append(write(name, setting.label, values))
    return [text for text in texts if text]
