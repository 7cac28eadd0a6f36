"""The report stage: one self-contained HTML page with the study, its machine, figures, tables and provenance."""

import base64
import io
import statistics
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import docutils.core  # type: ignore[import-untyped]
import docutils.utils  # type: ignore[import-untyped]
import jinja2
from markupsafe import Markup

from triplepoint.config.plan import read_plan
from triplepoint.errors import UserError
from triplepoint.figures.selection import figures_of
from triplepoint.files import write_text
from triplepoint.manifest import Manifest, Node, read_manifest
from triplepoint.report.claims import sum_up_claims, write_number
from triplepoint.report.lanes import embed_lanes
from triplepoint.status import RESULTS, Status
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import Column
from triplepoint.tables.studies import read_joined, require_tables
from triplepoint.units import GIB

_TEMPLATES = (
    "templates/report.html",
    "templates/zoom.html",
    "templates/zoom_draw.html",
    "templates/zoom_move.html",
    "templates/claims.html",
)

_COLUMNS = (
    "run", "status", "reason", "step_notes", "num_gpus", "micro_batch_size", "num_microbatches", "step_time_s",
    "step_time_p10_s", "step_time_p90_s", "time_to_first_token_s", "time_per_output_token_s", "tokens_per_s",
    "tokens_per_s_per_gpu", "mfu", "exposed_comm_s", "peak_memory_bytes", "reserved_memory_bytes",
    "predicted_step_time_s", "predicted_step_time_lo_s", "predicted_step_time_hi_s", "step_time_error",
    "predicted_memory_bytes", "memory_error", "prediction_absent", "job_gpu_power_w", "gpu_energy_per_token_j",
    "job_gpu_samples_per_s_mj", "job_host_power_w", "host_energy_per_token_j", "power_absent", "cpu_utilisation",
    "gpu_utilisation", "loss_first", "loss_last", "studies",
)  # fmt: skip
"""Columns of `points` in the page's table; one that holds nothing at all is left out."""

_SUFFIX = {"s": "_s", "byte": "_bytes", "W": "_w", "J/token": "_j"}
"""End of a column's name that its unit repeats."""

_LONG = {"reason", "step_notes", "power_absent", "prediction_absent", "run"}


def write_report(results: Path, figs: Path, captions: Path, out: Path, names: Sequence[str] | None = None) -> None:
    """Write the page.

    Args:
        results: Folder of the results: tables and the manifests of runs.
        figs: Folder of the figures.
        captions: Folder with one reStructuredText caption per figure.
        out: File to write.
        names: Figures, in order. None: those of the plan.

    Raises:
        UserError: If a table, a figure, a caption or a manifest is missing or damaged.
    """
    plan = read_plan(results / "plan.json")
    require_tables(results, plan.studies, "report", "snakemake report.html")
    points = read_joined(results, plan.studies, "points").to_pylist()
    names = figures_of(plan) if names is None else names
    launched = [point["run"] for point in points if point["host"]]
    manifests = [read_manifest(results / "runs" / run / "raw" / "manifest.json") for run in launched]
    columns = [
        column
        for column in POINTS.columns
        if column.name in _COLUMNS and any(point[column.name] is not None for point in points)
    ]
    columns.sort(key=lambda column: _COLUMNS.index(column.name))
    lanes = embed_lanes(points, read_joined(results, plan.studies, "timeline"), results)
    studies = sorted({study for point in points for study in point["studies"]})
    page = _environment().get_template("report.html").render(
        title=f"Triplepoint: {', '.join(studies) or 'no study'}",
        origin=" + ".join(sorted({point["origin"] for point in points})) or "nothing",
        sentence=_sentence(points),
        statuses=[status.label for status in _statuses(points)],
        summary=_summary(points),
        machines=_machines(manifests),
        predictions=sum_up(points),
        claims=sum_up_claims(read_joined(results, plan.studies, "claims").to_pylist()),
        figures=[picture(name, figs, captions) for name in names],
        lanes=lanes,
        columns=[_heading(column) for column in columns],
        rows=[_row(point, columns) for point in points],
        provenance=_provenance(manifests, results),
    )  # fmt: skip
    write_text(out, page)


def _environment() -> jinja2.Environment:
    folder = resources.files("triplepoint.report")
    texts = {Path(name).name: folder.joinpath(name).read_text(encoding="utf-8") for name in _TEMPLATES}
    return jinja2.Environment(loader=jinja2.DictLoader(texts), autoescape=True, undefined=jinja2.StrictUndefined)


def _statuses(points: list[dict[str, Any]]) -> list[Status]:
    return [status for status in RESULTS if any(point["status"] == status for point in points)]


def _sentence(points: list[dict[str, Any]]) -> str:
    found = Counter(point["status"] for point in points)
    parts = [f"{found[status]} {status.label}" for status in RESULTS if found[status]]
    return f"{len(points)} point{'s' if len(points) != 1 else ''}: {', '.join(parts)}."


def _summary(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], Counter] = {}
    for point in points:
        groups.setdefault((point["model"], point["cluster"]), Counter())[point["status"]] += 1
    return [
        {"model": model, "cluster": cluster, "counts": [c[s] for s in _statuses(points)], "total": c.total()}
        for (model, cluster), c in groups.items()
    ]


def _machines(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """Return what each host is and what was measured on it, hosts that are alike together."""
    alike: dict[tuple, set[str]] = {}
    for manifest in manifests:
        for node in manifest.nodes:
            alike.setdefault(_describe(node), set()).add(node.host)
    # Runs use different numbers of devices of one host: the account with most devices is kept.
    best: dict[tuple[str, ...], tuple] = {}
    for description, hosts in alike.items():
        key = tuple(sorted(hosts))
        if key not in best or description[2] > best[key][2]:
            best[key] = description
    return [
        {
            "host": ", ".join(hosts),
            "cores": cores,
            "memory": memory,
            "devices": f"{number} × {product}",
            "measured": ", ".join(measured) or "nothing",
            "absent": [(reason, ", ".join(names)) for reason, names in absent],
        }
        for hosts, (cores, memory, number, product, measured, absent) in best.items()
    ]


def _describe(node: Node) -> tuple:
    devices = {device.device for device in node.devices}
    products = ", ".join(sorted({device.product for device in node.devices if device.product})) or "no device"
    absent: dict[str, list[str]] = {}
    for column, reason in (node.telemetry.absent if node.telemetry else {}).items():
        absent.setdefault(reason, []).append(column)
    absent |= {gap: ["telemetry"] for gap in node.gaps}
    return (
        node.num_cores,
        f"{node.memory_bytes / GIB:.1f} GiB",
        len(devices),
        products,
        node.telemetry.measured if node.telemetry else (),
        tuple((reason, tuple(columns)) for reason, columns in absent.items()),
    )


def _heading(column: Column) -> dict[str, str]:
    label = column.name.removesuffix(_SUFFIX.get(column.unit, ""))
    unit = {"1": "", "byte": "GiB"}.get(column.unit, column.unit)
    return {"label": label.replace("_", " "), "unit": unit, "about": column.about}


def _row(point: dict[str, Any], columns: list[Column]) -> dict[str, Any]:
    return {"is_ok": point["status"] == Status.OK, "cells": [_cell(column, point[column.name]) for column in columns]}


def _cell(column: Column, value: Any) -> dict[str, str]:
    if column.type in ("int", "float"):
        scaled = value / GIB if column.unit == "byte" and value is not None else value
        text = "" if scaled is None else write_number(scaled)
        return {"kind": "number", "text": text}
    text = ", ".join(value) if isinstance(value, list) else str(value or "")
    kind = "status" if column.name == "status" else ("long" if column.name in _LONG else "text")
    return {"kind": kind, "text": text}


def _provenance(manifests: list[Manifest], results: Path) -> list[tuple[str, str]]:
    versions: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.versions.items():
            versions.setdefault(name, set()).add(version)
    commits = sorted({_commit(manifest) for manifest in manifests})
    starts = sorted(manifest.started_at for manifest in manifests)
    ends = sorted(manifest.ended_at for manifest in manifests)
    return [
        ("Results", str(results)),
        ("Engines", ", ".join(sorted({manifest.engine for manifest in manifests})) or "none"),
        ("Commits", ", ".join(commits) or "none"),
        ("First launch", starts[0] if starts else "none"),
        ("Last end", ends[-1] if ends else "none"),
        ("Launch time", f"{sum(manifest.duration_s for manifest in manifests):.0f} s over {len(manifests)} runs"),
        ("Seeds", ", ".join(str(seed) for seed in sorted({manifest.seed for manifest in manifests})) or "none"),
        *((name, ", ".join(sorted(found))) for name, found in sorted(versions.items())),
        *_said(manifests),
    ]


def _said(manifests: list[Manifest]) -> list[tuple[str, str]]:
    """Return what launched runs say of themselves that belongs to where numbers come from; different answers apart."""
    lines = []
    for name, key in (
        ("Model FLOPs per token", "flops_formula"), ("Collectives", "collective_settings"), ("CUDA", "cuda"),
        ("ROCm", "rocm"), ("NCCL", "nccl"), ("Samples", "samples"),
    ):  # fmt: skip
        if found := sorted({str(manifest.facts[key]) for manifest in manifests if manifest.facts.get(key)}):
            lines.append((name, "; ".join(found)))
    return lines


def _commit(manifest: Manifest) -> str:
    if manifest.git_commit is None:
        return "outside a repository"
    return manifest.git_commit + (" with uncommitted changes" if manifest.git_dirty else "")


def sum_up(points: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return lines of term and text: of each predicted quantity its error, and why others have no prediction."""
    lines = []
    for word, column in (("Step time", "step_time_error"), ("Memory", "memory_error")):
        errors = [point[column] for point in points if point[column] is not None]
        if errors:
            median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
            lines.append((word, f"{len(errors)} runs, off by {median:.1%} in the median, {worst:+.1%} at worst"))
    inside = [_is_inside(point) for point in points if point["predicted_step_time_lo_s"] and point["step_time_s"]]
    if inside:
        lines.append(("Interval", f"{sum(inside)} of {len(inside)} measured step times lie in the 90 % interval"))
    absent = Counter(point["prediction_absent"] for point in points if point["prediction_absent"])
    lines += [("No prediction", f"{count} runs: {reason}") for reason, count in absent.items()]
    return lines


def _is_inside(point: dict[str, Any]) -> bool:
    return bool(point["predicted_step_time_lo_s"] <= point["step_time_s"] <= point["predicted_step_time_hi_s"])


def picture(name: str, figs: Path, captions: Path) -> dict[str, Any]:
    """Return what the page's template needs to show a figure: image, size on the screen, and caption.

    Raises:
        UserError: If the figure or its caption is missing or damaged.
    """
    path = figs / f"{name}.png"
    try:
        image = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such figure; draw it with 'triplepoint figure {name}'") from None
    base = name.rpartition("/")[2]
    title = base.replace("_", " ").capitalize() + (f", study {name.partition('/')[0]}" if base != name else "")
    caption, plain = _caption(captions / f"{base}.rst")
    return {
        "name": name,
        "title": title,
        "image": base64.b64encode(image).decode("ascii"),
        "width": _css_width(image, path),
        "alt": f"{title}: {plain}",
        "caption": Markup(caption),
    }


def _css_width(image: bytes, path: Path) -> int:
    """Return the width that shows a figure at 96 pixels per printed inch, half as large again for the screen."""
    if image[:8] != b"\x89PNG\r\n\x1a\n":
        raise UserError(f"{path}: not a PNG file; delete it and draw the figure again")
    # The header chunk holds the width as the first of its big-endian integers.
    width = int.from_bytes(image[16:20], "big")
    return round(width * 1.5 * 96 / 200)


def _caption(path: Path) -> tuple[str, str]:
    """Return a caption as HTML, and its first sentence as plain text."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such caption; every figure has one") from None
    complaints = io.StringIO()
    # Captions are text: they may not read files, run raw HTML, or read a user's docutils configuration.
    settings = {
        "file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True, "warning_stream": complaints,
        "halt_level": 2, "initial_header_level": 3,
    }  # fmt: skip
    try:
        parts = docutils.core.publish_parts(text, writer="html5", settings_overrides=settings)
    except docutils.utils.SystemMessage as error:
        raise UserError(f"{path}: not valid reStructuredText: {error}") from None
    first = " ".join(text.split()).split(". ")[0].rstrip(".") + "."
    return str(parts["body"]), first.replace("*", "").replace("`", "")
