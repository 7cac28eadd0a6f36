"""The page: self-contained, complete, and safe against what names and messages may hold."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.synthetic import CONFIG, Spec, build
from triplepoint import figures
from triplepoint.aggregate import aggregate
from triplepoint.config.plan import Plan
from triplepoint.errors import UserError
from triplepoint.figures.selection import figures_of
from triplepoint.figures.write import write_figure
from triplepoint.manifest import read_manifest, write_manifest
from triplepoint.report import write_report
from triplepoint.verdicts.judge import write_claims

CAPTIONS = Path(__file__).parents[3] / "workflow" / "report"
HOSTILE = "<script>alert('x')</script>&\"{{ 7*7 }}"
VOID = {"meta", "link", "img", "br", "hr"}


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
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] not in (["style"], ["script"]) else ""


Report = Callable[..., Page]


@pytest.fixture
def results(tmp_path: Path) -> tuple[Path, Plan]:
    specs = [
        Spec("tiny-llama", {"dp": 2}),
        Spec("tiny-llama", {"dp": 2}, 2, status="oom"),
        Spec("tiny-llama", {"dp": 2}, 4, status="invalid"),
    ]
    return tmp_path, build(tmp_path, specs, studies=("mine",))


def page_of(folder: Path, plan: Plan) -> Page:
    aggregate(plan, folder, CONFIG)
    write_claims(folder, plan.studies, CONFIG)
    for name in figures_of(plan):
        write_figure(name, folder, folder / "figs")
    write_report(folder, folder / "figs", CAPTIONS, folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_write_report_is_whole_and_self_contained(results: tuple[Path, Plan]) -> None:
    page = page_of(*results)
    links = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert all(link.startswith(("#", "data:")) for link in links)
    targets = {a["id"] for _, a in page.tags if "id" in a}
    assert {link[1:] for link in links if link.startswith("#")} <= targets
    images = [a for tag, a in page.tags if tag == "img"]
    assert len(images) == len(figures_of(results[1]))
    assert all(len(image["alt"]) > 30 for image in images)
    for heading in ("Summary", "Machine", "Microbatch power", "Timeline", "Points", "Provenance"):
        assert heading in page.text


def test_write_report_tells_outcomes_machine_and_provenance(results: tuple[Path, Plan]) -> None:
    text = " ".join(page_of(*results).text.split())
    assert "3 points: 1 ok, 1 out of memory, 1 invalid." in text
    assert "80 layers do not divide into 32 pipeline stages" in text
    assert "rank 3 on node0: CUDA out of memory" in text
    assert "cpu_energy_j: no /sys/class/powercap/intel-rapl on this host" in text
    assert "7a8460e5aa3f4b97f20e6024b9a2d13f8c807296" in text
    assert "2.13.0" in text
    assert "2 logical, 8.0 GiB memory" in text


def test_write_report_escapes_hostile_text(results: tuple[Path, Plan]) -> None:
    folder, plan = results
    path = folder / "runs" / plan.entries[1].run / "raw/manifest.json"
    manifest = read_manifest(path)
    node = manifest.nodes[0].model_copy(update={"host": HOSTILE})
    evidence = manifest.evidence.model_copy(update={"message": HOSTILE, "host": HOSTILE})
    write_manifest(path, manifest.model_copy(update={"evidence": evidence, "nodes": (node,)}))
    page = page_of(folder, plan)
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [
        {"type": "application/json", "id": "zoom-data"}, {},
    ], "the timeline's data and its code, nothing else"  # fmt: skip
    assert page.text.count(HOSTILE) >= 2
    assert "49" not in [part.strip() for part in page.text.split("&")]


def test_write_report_timeline_of_a_run_stands_in_the_page(results: tuple[Path, Plan]) -> None:
    page = page_of(*results)
    text = " ".join(page.text.split())
    run = results[1].entries[0].run
    assert "Timeline of a run" in text
    assert f"The traces of a run are in {results[0]}/runs/RUN/raw/traces/ and open in ui.perfetto.dev." in text
    assert f'"run":"{run}"' in (results[0] / "report.html").read_text()


def test_write_report_without_a_traced_run_has_no_timeline(tmp_path: Path) -> None:
    page = page_of(tmp_path, build(tmp_path, [Spec("tiny-llama", {"dp": 2}, status="oom")]))
    assert "Timeline of a run" not in page.text
    assert "script" not in [tag for tag, _ in page.tags]


def test_write_report_twice_gives_the_same_bytes(results: tuple[Path, Plan]) -> None:
    folder, plan = results
    page_of(folder, plan)
    first = (folder / "report.html").read_bytes()
    write_report(folder, folder / "figs", CAPTIONS, folder / "report.html")
    assert (folder / "report.html").read_bytes() == first


def refusal(folder: Path, captions: Path = CAPTIONS) -> str:
    with pytest.raises(UserError) as caught:
        write_report(folder, folder / "figs", captions, folder / "again.html")
    assert not (folder / "again.html").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_write_report_refuses_missing_parts(results: tuple[Path, Plan]) -> None:
    folder, plan = results
    assert "study mine has no finished run" in refusal(folder)
    page_of(folder, plan)
    image = folder / "figs/mine/timeline.png"
    content = image.read_bytes()
    image.write_bytes(b"no picture")
    assert "timeline.png: not a PNG file" in refusal(folder)
    image.unlink()
    assert re.search(r"timeline\.png: no such figure; draw it with 'triplepoint figure mine/timeline'", refusal(folder))
    image.write_bytes(content)
    assert "no such caption" in refusal(folder, folder / "captions")


def test_write_report_refuses_broken_or_reading_captions(results: tuple[Path, Plan]) -> None:
    folder, plan = results
    page_of(folder, plan)
    captions = folder / "captions"
    captions.mkdir()
    for name in figures.NAMES:
        (captions / f"{name}.rst").write_text("Fine.\n\n.. include:: /etc/passwd\n")
    assert "microbatch_power.rst: not valid reStructuredText" in refusal(folder, captions)


@pytest.mark.parametrize("name", figures.NAMES)
def test_caption_exists_for_every_figure(name: str) -> None:
    assert len((CAPTIONS / f"{name}.rst").read_text().split()) > 40
