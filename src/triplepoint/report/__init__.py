"""Report stage: a self-contained front page with findings, figures and runs, and a page for each run."""

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import docutils.core  # type: ignore[import-untyped]
import docutils.utils  # type: ignore[import-untyped]
from markupsafe import Markup

from triplepoint.config.plan import read_plan
from triplepoint.effects.titles import Statement
from triplepoint.errors import UserError
from triplepoint.figures import spec_of, text_of
from triplepoint.figures.selection import figures_of
from triplepoint.files import write_text, write_text_if_changed
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.report.claims import sum_up_claims
from triplepoint.report.findings import FIRST, Finding, find
from triplepoint.report.machines import describe_machines, describe_provenance, sum_up
from triplepoint.report.pages import environment, template, vendored
from triplepoint.report.payload import compress
from triplepoint.report.pictures import read_picture
from triplepoint.report.run_pages import link_to, write_run_pages
from triplepoint.report.runs import (
    Words,
    compared,
    in_order,
    name_settings,
    page_name,
    quantities,
    settings_apart,
    table_rows,
)
from triplepoint.status import RESULTS
from triplepoint.tables.studies import read_joined, require_tables
from triplepoint.units import counted
from triplepoint.verdicts.judge import judge

Row = Mapping[str, Any]

PAGES = "report"
"""Name of the folder with the pages of runs: that of the front page without its suffix."""
SUMMARY = "summary.txt"
"""File in the folder of pages with the first findings, which the workflow prints at its end."""
_NUM_SUMMARY_FINDINGS = 3
"""Number of findings in the summary."""
_ASSETS = ("tabulator.min.js", "tabulator_simple.min.css", "uPlot.iife.min.js", "uPlot.min.css")
_STEPS = (
    "Warm-up steps count for nothing. Time, power, temperature and clocks come from measured steps, kernels and "
    "exposed time from profiled ones."
)
_SIMULATED = (
    "Predicted from the model, the layout and the cluster. Intervals are those of the model, meant to hold the truth "
    "in 90 % of cases. An interval of a change over layouts, nodes or GPUs leaves out the error of the model: two "
    "simulated runs share most of it, and what is left is not known."
)
LIMIT_BYTES = 1_000_000
"""Largest total size of uncompressed figures in the front page; the largest are compressed to about a fifth."""


def write_report(results: Path, figs: Path, captions: Path, out: Path, names: Sequence[str] | None = None,
                 num_jobs: int = 1, judged_from: Path | None = None) -> None:  # fmt: skip
    """Write the front page, and the pages of runs into a folder with the same name without suffix.

    Args:
        results: Folder of tables and runs.
        figs: Folder of the figures.
        captions: Folder with one reStructuredText caption per figure.
        out: File of the front page.
        names: Figures in their order. None: the figures of the plan.
        num_jobs: Number of processes that write pages of runs.
        judged_from: Folder of the configuration with claims to judge by the studies of the plan only. None: verdicts
            are read from the table of all studies.

    Raises:
        UserError: If a table, a figure, a caption or a manifest is missing or damaged.
    """
    plan = read_plan(results / "plan.json")
    require_tables(results, plan.studies, "report", "snakemake report.html")
    names = figures_of(plan, is_alone=judged_from is not None) if names is None else names
    points = in_order(read_joined(results, plan.studies, "points").to_pylist())
    words = name_settings(points)
    if judged_from is None:
        claims = read_joined(results, plan.studies, "claims")
    else:
        claims = judge(results, plan.studies, judged_from)
    manifests = [
        read_manifest(results / "runs" / point["run"] / "raw" / "manifest.json") for point in points if point["host"]
    ]
    templates, folder = environment(), out.with_suffix("")
    shown, colours, statements = _figures(names, figs, captions, out.parent)
    findings = find(points, {_identifier(name): spec_of(name) for name in names}, folder.name, statements)
    page = templates.get_template("front.html").render(
        **_front(points, words, manifests, results, folder.name),
        claims=sum_up_claims(claims.to_pylist(), plan.studies),
        findings=findings,
        num_first=FIRST,
        figures=shown,
        colours=colours,
    )
    _write_assets(folder / "assets")
    write_run_pages(points, words, results, folder, f"../{out.name}", templates.get_template("run.html"), num_jobs)
    _remove_old_pages(folder, {page_name(point["run"]) for point in points})
    write_text(folder / SUMMARY, _summary(points, findings, out))
    write_text(out, page)


def _front(points: Sequence[Row], words: Mapping[str, Words], manifests: Sequence[Manifest], results: Path,
           pages: str) -> dict[str, Any]:  # fmt: skip
    """Return the variables of the front page's template, without findings, claims and figures."""
    studies = sorted({study for point in points for study in point["studies"]})
    data = {
        "pages": pages,
        "rows": [row | {"title": f"{row['model']} {row['layout']}"} for row in table_rows(points, words)],
        "shown": quantities(points),
        "compared": compared(points),
        "settings": settings_apart(points),
    }
    return {
        "title": f"Triplepoint: {studies[0] if len(studies) == 1 else counted(len(studies), 'study', 'studies')}",
        "studies": studies if len(studies) > 1 else [],
        "origins": sorted(Counter(point["origin"] for point in points).items()),
        "sentence": _sentence(points),
        "results": results,
        "machines": describe_machines(manifests),
        "predictions": sum_up(points),
        "methodology": _methodology(points),
        "provenance": describe_provenance(manifests, str(results)),
        "style": Markup(vendored("tabulator_simple.min.css") + template("report.css")),
        "library": Markup(vendored("tabulator.min.js") + vendored("fflate.umd.js")),
        "script": Markup(template("front.js")),
        "data": Markup(_json(data)),
    }


def _json(data: Any) -> str:
    """Return JSON for a script element. No text in it can end that element, since '<' is escaped."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _write_assets(folder: Path) -> None:
    """Write the libraries with their licences, the style and the script that the pages of runs share."""
    for name in (*_ASSETS, "fflate.LICENSE", "tabulator.LICENSE", "uPlot.LICENSE"):
        write_text_if_changed(folder / name, vendored(name))
    for name in ("report.css", "run.js"):
        write_text_if_changed(folder / name, template(name))


def _remove_old_pages(folder: Path, names: set[str]) -> None:
    """Remove the pages of runs other than `names`."""
    for path in folder.glob("*"):
        if path.is_file() and path.suffix in (".html", ".js") and path.stem not in names:
            path.unlink()


def _sentence(points: Sequence[Row]) -> str:
    """Return the number of runs by status in words."""
    counts = Counter(point["status"] for point in points)
    parts = [f"{counts[status]} {status.label}" for status in RESULTS if counts[status]]
    return f"{counted(len(points), 'run')}: {', '.join(parts)}."


def _summary(points: Sequence[Row], findings: Sequence[Finding], out: Path) -> str:
    """Return the summary: the number of runs by status, and the first findings, one per line."""
    first = [f"  {finding.headline}" for finding in findings[:_NUM_SUMMARY_FINDINGS]]
    more = len(findings) - len(first)
    rest = [f"  {more} more findings in the report"] if more else []
    return "\n".join([f"{out}: {_sentence(points)}", *first, *rest]) + "\n"


def _methodology(points: Sequence[Row]) -> list[tuple[str, str]]:
    """Return terms and texts on how the numbers were obtained, as far as they apply to the runs of the page."""
    origins = {point["origin"] for point in points}
    sources = sorted({point["gpu_power_source"] for point in points if point["gpu_power_source"]})
    steps = sorted({point["num_measured_steps"] for point in points if point["num_measured_steps"]})
    lines = [
        ("Steps", _STEPS),
        ("Step time", "Median over measured steps of the slowest rank's step."),
    ]
    if steps:
        lines.append(("Measured steps", " to ".join(map(str, dict.fromkeys((steps[0], steps[-1])))) + " a run"))
    if sources:
        lines.append(("GPU power", "from " + "; ".join(sources)))
    if "simulated" in origins:
        lines.append(("Simulated runs", _SIMULATED))
    if "measured" in origins:
        lines.append(("Measured runs", "Intervals are the 10th to 90th percentile over steps or samples."))
    lines += [
        (status.label.capitalize(), status.about)
        for status in RESULTS
        if any(point["status"] == status for point in points)
    ]
    return lines


def _figures(
    names: Iterable[str], figs: Path, captions: Path, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, list[Statement]]]:
    """Return the variables of each figure for the template, the CSS variables of colours, and statements by figure.

    Args:
        names: Figures in their order.
        figs: Folder of the figures.
        captions: Folder of the captions.
        folder: Folder of the front page.
    """
    shown: list[dict[str, Any]] = []
    colours: dict[str, str] = {}
    statements: dict[str, list[Statement]] = {}
    for name in names:
        spec, identifier = spec_of(name), _identifier(name)
        question = spec.question if spec.name == name else f"{spec.question} Study {name.partition('/')[0]}"
        caption, notes = text_of(spec.name, captions)
        texts = {"caption": _html(caption, spec.name), "notes": _html(notes, spec.name)}
        picture = read_picture(figs / f"{name}.svg", identifier, f"{question} {_first_sentence(caption)}")
        colours |= picture.colours
        statements[identifier] = picture.statements
        paths = [figs / f"{name}.{end}" for end in ("pdf", "csv")]
        files = [(path.suffix[1:].upper(), link_to(path, folder)) for path in paths if path.is_file()]
        shown.append({
            "name": identifier, "question": question, "answer": picture.title,
            "png": link_to(figs / f"{name}.png", folder),
            "image": Markup(picture.svg), "files": files,
            **texts,
        })  # fmt: skip
    _compress_largest(shown)
    return shown, colours, statements


def _identifier(name: str) -> str:
    """Return the identifier of a figure in the page, without slashes."""
    return name.replace("/", "--")


def _compress_largest(figures: Sequence[dict[str, Any]]) -> None:
    """Compress the largest figures until the others fit into `LIMIT_BYTES`; the script of the page unpacks them."""
    plain = sorted(figures, key=lambda figure: len(figure["image"]))
    while plain and sum(len(figure["image"]) for figure in plain) > LIMIT_BYTES:
        largest = plain.pop()
        style = re.search(r'style="[^"]*"', largest["image"])
        data = compress(largest["image"])
        largest["image"] = Markup(f'<span class="packed" {style[0] if style else ""} data-svg="{data}"></span>')


def _html(text: str, name: str) -> Markup:
    """Return reStructuredText of a figure as HTML."""
    warnings = io.StringIO()
    # Captions must not insert files or raw HTML, and a user's docutils configuration must not change them.
    settings = {
        "file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True, "warning_stream": warnings,
        "halt_level": 2, "initial_header_level": 4,
    }  # fmt: skip
    try:
        parts = docutils.core.publish_parts(text, writer="html5", settings_overrides=settings)
    except docutils.utils.SystemMessage as error:
        raise UserError(f"{name}.rst: not valid reStructuredText: {error}") from None
    return Markup(str(parts["body"]))


def _first_sentence(text: str) -> str:
    """Return the first sentence of reStructuredText as plain text."""
    return (" ".join(text.split()).split(". ")[0].rstrip(".") + ".").replace("*", "").replace("`", "")
