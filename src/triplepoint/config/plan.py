"""Plan and planned runs: `plan.json` for the selection, `point.json` for each run, and the run ids."""

import hashlib
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
from triplepoint.files import load_json

_ADVICE = "write it with 'triplepoint plan --write'"
_ADVICE_RECORDED = "no plan has a recorded or imported run: put back a copy of the file, or remove the run's folder"

RunId = Annotated[str, Field(pattern=RUN_PATTERN)]


class Limits(Featured):
    """Launch parameters of a run. They do not affect what it measures, so changing them launches nothing again."""

    features: ClassVar[frozenset[str]] = frozenset({"slots"})

    executor: Literal["local", "slurm"]
    """Launch of the gang: on this machine, or through Slurm."""
    time_limit_s: float
    """Wall time after which the launch ends as `timeout`. Unit: s."""
    hang_timeout_s: float
    """Time without progress after which the launch ends as `timeout`. Unit: s."""
    fast_telemetry_period_s: float = 0.05
    """Time between samples of the GPUs' fast sensors. Unit: s."""
    slots: Slots | None = None
    """Physical slots of a node's devices, as `cluster.slots`."""


class PlannedRun(Strict):
    """One run ready to launch: the content of `results/runs/<run>/point.json`."""

    run: RunId
    """Run id, a readable label; facts are in `point`."""
    digest: str
    """`Point.digest()` of `point`."""
    point: Point
    """Configuration to measure."""
    limits: Limits
    """Launch parameters."""


class PlanEntry(Strict):
    """One point of the selection, valid or not."""

    run: RunId
    """Run id."""
    studies: tuple[str, ...]
    """Studies that contain the point."""
    invalid_because: str | None
    """Reason why the point cannot run; None if it can."""
    planned: PlannedRun
    """The run, with point and launch parameters."""


class Plan(Strict):
    """All points of the selected studies, without duplicates: the content of `results/plan.json`."""

    entries: tuple[PlanEntry, ...]
    """Entries in the order of the studies."""
    num_folded: Annotated[int, Field(ge=0)] = 0
    """Points omitted because folding made them equal to another point of the same study."""
    figures: dict[str, tuple[str, ...]] = {}
    """Figures to draw of each study alone, for the studies whose files name some."""
    order: dict[str, tuple[RunId, ...]] = {}
    """Run ids of each study in its own order. It differs from `entries` if an earlier study has some of its points."""

    @property
    def valid(self) -> list[PlanEntry]:
        """Entries that can be launched."""
        return [entry for entry in self.entries if entry.invalid_because is None]

    @property
    def studies(self) -> tuple[str, ...]:
        """Studies that have an entry, in the order of the entries."""
        return tuple(dict.fromkeys(study for entry in self.entries for study in entry.studies))

    def of_study(self, study: str) -> "Plan":
        """Return the plan of one study, which does not depend on the other selected studies."""
        entries = {entry.run: entry for entry in self.entries if study in entry.studies}
        order = self.order.get(study, tuple(entries))
        return Plan(
            entries=tuple(entries[run].model_copy(update={"studies": (study,)}) for run in order if run in entries)
        )

    def text(self) -> str:
        """Return the plan as the JSON text of `plan.json`."""
        return self.model_dump_json(indent=2) + "\n"

    def digest(self) -> str:
        """Return the identity of the plan: SHA-256 over its whole content, launch parameters included."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()


def read_plan(path: Path) -> Plan:
    """Return the plan in `plan.json`. Raises `UserError` if it is missing or damaged."""
    return read_json(Plan, path, _ADVICE)


def read_planned_run(path: Path) -> PlannedRun:
    """Return the run in `point.json`.

    Raises:
        UserError: If it is missing or damaged, or its digest does not match its point.
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
    """Return whether a run's folder has the manifest of a recorded or imported run."""
    try:
        return bool(load_json((run / "raw" / "manifest.json").read_text(encoding="utf-8"))["engine"] == "recorded")
    except (OSError, ValueError, KeyError, TypeError):
        return False


DIGEST_DIGITS = 6
"""Hexadecimal digits of the digest in a run id: enough to tell points of one label apart. Stages compare the whole."""
_MOST_LABEL_CHARACTERS = 180
"""Longest label. Names of files have at most 255 bytes, and logs and scratch files add to the label."""


def run_id(point: Point, digest: str | None = None) -> str:
    """Return the id of a run, such as `llama3-70b_h200x32_tp4-pp4-dp2_mbs1_act_r1_3f9a01`: label and digest.

    The digest makes the id unique to the point. A changed point is a new run; the results of the old one are kept and
    used again when the change is undone.

    Args:
        point: Point that the run measures.
        digest: Digest of the point, if already computed.
    """
    return f"{run_label(point)[:_MOST_LABEL_CHARACTERS]}_{(digest or point.digest())[:DIGEST_DIGITS]}"


def run_label(point: Point) -> str:
    """Return the label of a point, such as `llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_r1`.

    It always has model, cluster, layout and repeat, and the settings that differ from `Setting.usual`. Nothing parses
    labels: facts are in `point.json`.
    """
    values = settings_of(point)
    layout, texts = "-".join(_texts(point, _IN_LAYOUT, values)), _texts(point, _AFTER_LAYOUT, values)
    parts = [point.model.name, point.cluster.name, layout, *texts, f"r{point.repeat}"]
    return "_".join(part for part in parts if part)


def layout_label(point: Point) -> str:
    """Return the layout part of a point's label, such as `tp2-pp2-dp8-ep8-sp-zero1`."""
    return "-".join(_texts(point, _IN_LAYOUT, settings_of(point)))


def _labelled(names: Iterable[str]) -> dict[str, Setting]:
    """Return the settings among `names` that have a label."""
    return {name: SETTINGS[name] for name in names if SETTINGS[name].label is not None}


_IN_LAYOUT = _labelled(name for name in Layout.model_fields if name != "schedule")
"""Settings in the layout part of a label."""
_AFTER_LAYOUT = _labelled(["schedule", *Measured.model_fields, *ModelChoices.model_fields])
"""Settings in a label after the layout part."""


def _texts(point: Point, settings: Mapping[str, Setting], values: Mapping[str, Any]) -> list[str]:
    """Return the labels of the settings that differ from their usual value and are known."""
    texts = []
    for name, setting in settings.items():
        usual = setting.usual(point) if callable(setting.usual) else setting.usual
        if (usual is None or values[name] != usual) and point.knows(name):
            texts.append(write(name, setting.label, values))
    return [text for text in texts if text]
