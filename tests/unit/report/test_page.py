"""The front page and the pages of runs: whole, the same each time, and safe against hostile names and messages."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.synthetic import CONFIG, Spec, build
from triplepoint import figures
from triplepoint.aggregate import aggregate
from triplepoint.errors import UserError
from triplepoint.manifest import read_manifest, write_manifest
from triplepoint.report import write_report
from triplepoint.report.runs import page_name
from triplepoint.verdicts.judge import write_claims

from .conftest import CAPTIONS, HOSTILE, Report

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))
        self.text += " " if tag in ("td", "dd") else ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] not in (["style"], ["script"]) else ""


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def words(page: Page) -> str:
    return " ".join(page.text.split())


def test_front_page_loads_nothing_and_its_pages_load_what_stands_beside_them(report: Report) -> None:
    front = read(report.front)
    assert [a["src"] for _, a in front.tags if "src" in a] == []
    assert [a["href"] for tag, a in front.tags if tag == "link"] == ["data:,"]
    for path in (report.folder / "report").glob("*.html"):
        page = read(path)
        loaded = [a["src"] for tag, a in page.tags if tag == "script"]
        loaded += [a["href"] for tag, a in page.tags if tag == "link" and not a["href"].startswith("data:")]
        assert all((path.parent / name).is_file() for name in loaded)
        data = path.with_suffix(".js")
        assert path.stat().st_size + (data.stat().st_size if data.is_file() else 0) < 5_000_000


def test_front_page_has_its_sections_in_order(report: Report) -> None:
    sections = [a["id"] for tag, a in read(report.front).tags if tag == "section" and "--" not in a["id"]]
    expected = ["findings", "claims", "figures", "runs", "predictions", "machines", "methodology", "provenance"]
    assert sections == expected


def test_front_page_shows_figures_by_question_with_caption_and_files(report: Report) -> None:
    front = read(report.front)
    images = [a for tag, a in front.tags if tag == "svg"]
    assert len(images) == 2
    assert all(image["role"] == "img" and len(image["aria-label"]) > 60 for image in images)
    assert figures.FIGURES["timeline"].question in front.text
    links = {a["href"] for tag, a in front.tags if tag == "a"}
    for name in ("timeline", "optimization_sweep"):
        assert {f"figs/synthetic/{name}.{end}" for end in ("pdf", "csv")} <= links
    identifiers = [a["id"] for _, a in front.tags if "id" in a]
    assert len(set(identifiers)) == len(identifiers)


def test_report_tells_outcomes_machines_and_provenance(report: Report) -> None:
    text = words(read(report.front))
    assert "11 runs: 9 ok, 1 out of memory, 1 invalid." in text
    assert "cpu_energy_j: no /sys/class/powercap/intel-rapl on this host" in text
    assert "7a8460e5aa3f4b97f20e6024b9a2d13f8c807296" in text
    assert "2.13.0" in text
    assert "Processors 2 logical Memory 8.0 GiB Devices 1 × Xeon 8481C" in text
    oom, invalid = (next(e.run for e in report.plan.entries if mark in e.run) for mark in ("dp32", "mbs4"))
    assert "rank 3 on node0: CUDA out of memory" in words(read(report.page(oom)))
    assert "80 layers do not divide into 32 pipeline stages" in words(read(report.page(invalid)))


def test_page_of_a_run_has_numbers_kernels_manifest_and_files(report: Report) -> None:
    run = report.plan.entries[0].run
    page = read(report.page(run))
    text = words(page)
    assert run in text
    assert "Step time 30.3 29.64 to 32.28 s" in text
    assert "Why it is slow A step takes" in text
    assert "No GPU stands out from its peers" in text
    assert '"monotonic_ns": 1000000' in page.text
    links = {a["href"] for tag, a in page.tags if tag == "a"}
    assert f"../runs/{run}/raw/manifest.json" in links
    assert "../report.html#runs" in links


def written(folder: Path) -> dict[str, bytes]:
    paths = [folder / "report.html", *sorted((folder / "report").rglob("*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def small(folder: Path, studies: tuple[str, ...] = ("synthetic",), **more: str) -> Report:
    """Return a report without figures, of one run that ended well and one that did not."""
    plan = build(folder, [Spec("tiny-llama", {"dp": 2}), Spec("tiny-llama", {"dp": 2}, 2, status="oom")], studies)
    aggregate(plan, folder, CONFIG)
    write_claims(folder, studies, CONFIG)
    return again(Report(folder, plan))


def again(report: Report) -> Report:
    write_report(report.folder, report.folder / "figs", CAPTIONS, report.front, [])
    return report


def test_report_twice_gives_the_same_bytes_and_forgets_runs_that_are_gone(tmp_path: Path) -> None:
    report = small(tmp_path)
    first = written(tmp_path)
    (tmp_path / "report" / "gone.html").write_text("a run of another day")
    again(report)
    assert written(tmp_path) == first


def test_report_shows_hostile_names_as_text(tmp_path: Path) -> None:
    report = small(tmp_path)
    path = tmp_path / "runs" / report.plan.entries[1].run / "raw/manifest.json"
    manifest = read_manifest(path)
    node = manifest.nodes[0].model_copy(update={"host": HOSTILE})
    evidence = manifest.evidence.model_copy(update={"message": HOSTILE, "host": HOSTILE})
    write_manifest(path, manifest.model_copy(update={"evidence": evidence, "nodes": (node,)}))
    aggregate(report.plan, tmp_path, CONFIG)
    again(report)
    front, page = read(report.front), read(report.page(report.plan.entries[1].run))
    # Only the page's own three: its data, the library and what it does.
    assert [a for tag, a in front.tags if tag == "script"] == [{"type": "application/json", "id": "data"}, {}, {}]
    assert "script" not in [tag for tag, _ in page.tags]
    assert HOSTILE in front.text and page.text.count(HOSTILE) >= 2
    assert "49" not in [part.strip() for part in page.text.split("&")]


@pytest.mark.parametrize("run", ["../../etc/passwd", HOSTILE, "a b", ".", "", "x" * 300, "naïve"])
def test_page_name_of_a_hostile_run_is_a_plain_file_name(run: str) -> None:
    name = page_name(run)
    assert name.replace("-", "").replace(".", "").replace("_", "").isalnum() and name.isascii()
    assert not name.startswith(".") and len(name) < 200
    assert name != page_name(run + "x")


def refusal(report: Report, names: list[str], captions: Path = CAPTIONS) -> str:
    with pytest.raises(UserError) as caught:
        write_report(report.folder, report.folder / "figs", captions, report.folder / "again.html", names)
    assert not (report.folder / "again.html").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_write_report_refuses_missing_parts(tmp_path: Path) -> None:
    report = small(tmp_path)
    assert "draw it with 'triplepoint figure timeline'" in refusal(report, ["timeline"])
    (tmp_path / "figs").mkdir()
    (tmp_path / "figs/timeline.svg").write_text("no picture")
    assert "timeline.svg: not an SVG file" in refusal(report, ["timeline"])
    assert "no such file; each figure has a caption" in refusal(report, ["timeline"], tmp_path)
    (tmp_path / "timeline.rst").write_text("Fine.\n\n.. include:: /etc/passwd\n")
    assert "timeline.rst: not valid reStructuredText" in refusal(report, ["timeline"], tmp_path)
    (tmp_path / "tables/synthetic/points.parquet").unlink()
    assert "snakemake report.html" in refusal(report, [])


@pytest.mark.parametrize("name", figures.NAMES)
def test_caption_exists_for_every_figure(name: str) -> None:
    assert len((CAPTIONS / f"{name}.rst").read_text().split()) > 40
