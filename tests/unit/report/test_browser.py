"""The report in headless Chromium: it sorts, filters, compares, enlarges and zooms, without an error or dead link."""

import contextlib
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import CHROMIUM, open_browser
from triplepoint.report import write_report

from .conftest import CAPTIONS, Report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the report is not driven")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the report is not driven")

TAKES_MS = 60_000
"""Longest wait for anything: a machine that tests beside others may be slow."""


@pytest.fixture(scope="module")
def tab() -> Iterator[tuple[Any, list[str]]]:
    """One page for all tests, since each new one starts a process of its own; and the complaints it had."""
    with open_browser() as browser:
        page, complaints = browser.new_context(offline=True).new_page(), list[str]()
        page.set_default_timeout(TAKES_MS)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.on("dialog", lambda dialog: complaints.append(f"a script ran: {dialog.message}"))
        yield page, complaints


@pytest.fixture
def page(tab: tuple[Any, list[str]]) -> Iterator[Any]:
    """An empty page that may load nothing from a network; complaints of any kind fail the test."""
    page, complaints = tab
    page.goto("about:blank")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(media="screen", color_scheme="light")
    complaints.clear()
    yield page
    assert complaints == []


LINKS = "all => all.map(one => new URL(one.getAttribute('href') ?? one.getAttribute('src'), one.baseURI).href)"
READABLE = """selector => {
    const one = document.querySelector(selector);
    let behind = one;
    while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    return [getComputedStyle(one).color, getComputedStyle(behind || document.body).backgroundColor];
}"""
"""Colour of text, and of the first ground behind it."""
NAMELESS = """() => [...document.querySelectorAll("button, a[href], input, select, [role=img], [role=grid]")]
    .filter(one => ![one.getAttribute("aria-label"), one.getAttribute("aria-labelledby"), one.textContent.trim(),
        one.labels?.length].some(Boolean))
    .map(one => one.outerHTML.slice(0, 120))"""
"""What a screen reader could not call by a name."""


def show(page: Any, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    # The first frames of a page tell tables their size, and they draw their rows again: a click then may be lost.
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def column(page: Any, field: str) -> list[str]:
    return page.locator(f"#table .tabulator-row [tabulator-field={field}]").all_inner_texts()


def numbers(page: Any, field: str) -> list[float]:
    return [float(text.replace(",", "")) for text in column(page, field) if text]


def test_front_page_is_interactive_within_a_second(page: Any, report: Report) -> None:
    show(page, report.front)
    ready = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    # One second where nothing else runs; tests run beside each other.
    assert ready < 4000
    assert report.front.stat().st_size < 3_000_000


def test_links_of_all_pages_lead_somewhere(page: Any, report: Report) -> None:
    show(page, report.front)
    pages = {report.front, *(report.folder / "report").glob("*.html")}
    assert len(pages) == 1 + len(report.plan.entries)
    for path in sorted(pages):
        page.goto(path.as_uri())
        links = page.eval_on_selector_all("[href], script[src]", LINKS)
        for link in links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme == "file":
                target = Path(urllib.parse.unquote(parts.path))
                assert target.is_file(), f"{path.name}: {link}"
                if parts.fragment:
                    assert f'id="{parts.fragment}"' in target.read_text(encoding="utf-8"), f"{path.name}: {link}"


def test_table_sorts_by_click_and_by_key(page: Any, report: Report) -> None:
    show(page, report.front)
    heading = page.locator("#table .tabulator-col[tabulator-field=step_time_s]")
    heading.locator(".tabulator-col-title").click()
    rising = numbers(page, "step_time_s")
    assert len(rising) == 9
    assert rising == sorted(rising)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "step_time_s")[-2:] == ["", ""], "what was not measured stands last"
    heading.focus()
    page.keyboard.press("Enter")
    assert numbers(page, "step_time_s") == sorted(rising, reverse=True)
    assert column(page, "step_time_s")[-2:] == ["", ""]


def test_table_filters_by_words_text_and_number(page: Any, report: Report) -> None:
    show(page, report.front)
    page.fill("#search", "llama3 tp8")
    page.wait_for_function("document.getElementById('told').value === '3 of 11 runs'")
    page.fill("#search", "")
    page.get_by_label("Status contains").press_sequentially("memory")
    page.wait_for_function("document.querySelectorAll('#table .tabulator-row').length === 1")
    assert column(page, "title") == ["llama3-70b DP32"]
    page.get_by_label("Status contains").press("Control+a")
    page.get_by_label("Status contains").press("Backspace")
    page.get_by_label("Step time at least").press_sequentially("<25")
    page.wait_for_function("document.querySelectorAll('#table .tabulator-row').length === 4")
    assert max(numbers(page, "step_time_s")) < 25


def test_table_groups(page: Any, report: Report) -> None:
    show(page, report.front)
    page.select_option("#group", "model")
    page.wait_for_selector("#table .tabulator-group")
    groups = page.locator("#table .tabulator-group").all_inner_texts()
    assert [" ".join(text.split()) for text in groups] == ["tiny-llama (3 runs)", "llama3-70b (8 runs)"]


def test_table_heading_and_first_column_stay_in_sight(page: Any, report: Report) -> None:
    show(page, report.front)
    cell = page.locator("#table .tabulator-row [tabulator-field=title]").first
    heading = page.locator("#table .tabulator-header")
    before = cell.bounding_box()["x"], heading.bounding_box()["y"]
    page.evaluate("document.querySelector('#table .tabulator-tableholder').scrollTo(500, 60)")
    page.wait_for_timeout(100)
    assert (cell.bounding_box()["x"], heading.bounding_box()["y"]) == before


def test_row_opens_the_page_of_its_run(page: Any, report: Report) -> None:
    show(page, report.front)
    opened = "**/report/llama3-70b_h200x32*.html"
    for _ in range(3):
        # On a busy machine the table may draw its rows again between press and release, and the click is lost.
        page.locator("#table .tabulator-row [tabulator-field=cluster]").nth(4).click()
        with contextlib.suppress(playwright.TimeoutError):
            page.wait_for_url(opened, wait_until="commit", timeout=TAKES_MS / 4)
            break
    page.wait_for_url(opened, wait_until="commit")
    page.wait_for_selector("html[data-ready]")
    assert "llama3-70b" in page.inner_text("h1")


def mark(page: Any, *places: int) -> None:
    for place in places:
        page.locator("#table .tabulator-row input[type=checkbox]").nth(place).check()


def test_marked_runs_are_compared(page: Any, report: Report) -> None:
    show(page, report.front)
    mark(page, 3)
    assert page.locator("#compare").is_disabled()
    mark(page, 4)
    page.get_by_role("button", name="Compare 2 marked runs").click()
    lines = [text.split("\t") for text in page.locator("#compared tr").all_inner_texts()]
    rows = {cells[0]: cells[1:] for cells in lines}
    assert rows["recompute"] == ["none", "full"]
    assert "tp" not in rows, "what they share is no difference"
    first, second = rows["Step time (s)"]
    assert "+30 %" in second
    assert "%" not in first
    runs = page.locator("#compared code").inner_text().removeprefix("triplepoint compare ").split()
    assert len(runs) == 2 and all((report.folder / "runs" / run).is_dir() for run in runs)
    page.keyboard.press("Escape")
    assert page.locator("#comparison").is_hidden()


def test_figure_is_enlarged_and_put_back(page: Any, report: Report) -> None:
    show(page, report.front)
    button = page.locator(".picture").first
    before = button.bounding_box()["width"]
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("#large svg").bounding_box()["width"] > before
    page.keyboard.press("Escape")
    assert button.locator("svg").bounding_box()["width"] == pytest.approx(before, abs=1)
    assert page.evaluate("document.activeElement.className") == "picture"


def test_figures_fold_and_a_link_to_one_opens_it(page: Any, report: Report) -> None:
    show(page, report.front)
    folds = page.locator("#figures details.fold")
    is_open = "found => found.map(one => one.open)"
    assert folds.evaluate_all(is_open) == [True, False], "the first alone"
    assert folds.nth(1).locator(".answer").is_visible(), "the answer is there at once"
    folds.nth(1).locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert folds.evaluate_all(is_open) == [True, True]
    page.locator("#unfold").click()
    assert folds.evaluate_all(is_open) == [False, False]
    link = page.locator(".findings a", has_text="figure").first
    target = link.get_attribute("href").removeprefix("#")
    link.click()
    page.wait_for_function("name => document.getElementById(name).querySelector('details').open", arg=target)


def test_finding_is_a_headline_with_further_quantities_below(page: Any, report: Report) -> None:
    show(page, report.front)
    line = page.locator(".findings li", has_text="Recomputation").or_(page.locator(".findings li", has_text="recompu"))
    headline = line.locator(".says").first.inner_text()
    assert "makes a step" in headline and ";" not in headline and len(headline) < 100
    assert any(text.startswith("power") for text in line.first.locator(".chips li").all_inner_texts())


def test_figures_beyond_the_limit_are_packed_and_shown(
    page: Any, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triplepoint.report.LIMIT_BYTES", 0)
    names = ["synthetic/optimization_sweep", "synthetic/timeline"]
    path = report.folder / "packed.html"
    write_report(report.folder, report.folder / "figs", CAPTIONS, path, names)
    assert 'role="img"' not in path.read_text(encoding="utf-8")
    assert path.stat().st_size < report.front.stat().st_size
    page.goto(path.as_uri(), wait_until="domcontentloaded")
    # Printed right now, the page has them all.
    assert page.locator(".picture svg[role=img]").count() == 2 and page.locator(".packed").count() == 0
    assert len(page.pdf()) > 1.2 * len(_without_figures(page))
    show(page, path)
    assert page.locator(".picture svg text").first.is_visible()
    page.locator(".picture").first.click()
    assert page.locator("#large svg").is_visible()


def _without_figures(page: Any) -> bytes:
    """Return the page printed as it would be without figures."""
    page.add_style_tag(content=".picture { display: none }")
    printed: bytes = page.pdf()
    return printed


def test_csv_of_the_table_keeps_formulas_text(page: Any, report: Report) -> None:
    show(page, report.front)
    page.evaluate("Tabulator.findTable('#table')[0].updateData([{place: 0, setting: '=1+2'}])")
    with page.expect_download() as waited:
        page.click("#download")
    text = waited.value.path().read_text(encoding="utf-8-sig")
    assert len(text.splitlines()) == 12
    assert '"\'=1+2"' in text


def test_run_zooms_all_charts_together(page: Any, report: Report) -> None:
    show(page, report.page(report.plan.entries[0].run))
    charts = page.locator("#charts .uplot")
    assert charts.count() == 5, "power, clock, temperature, utilisation, timeline"
    assert page.locator("#charts h3").first.inner_text().startswith("Power")
    whole = page.inner_text("#range")
    page.click("[data-kind=profiled]")
    profiled = ends(page)
    assert profiled[1] - profiled[0] < (ends_of(whole)[1] - ends_of(whole)[0]) / 3
    page.focus("#charts")
    page.keyboard.press("+")
    assert ends(page)[1] - ends(page)[0] == pytest.approx((profiled[1] - profiled[0]) / 2, rel=0.01)
    page.keyboard.press("Home")
    assert page.inner_text("#range") == whole
    page.locator("#charts .u-over").nth(1).scroll_into_view_if_needed()
    box = page.locator("#charts .u-over").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=4)
    page.mouse.up()
    page.wait_for_function(f"document.getElementById('range').value !== '{whole}'")
    low, high = ends_of(whole)
    assert ends(page) == pytest.approx([low + (high - low) / 4, high - (high - low) / 4], abs=(high - low) / 50)
    page.locator("#charts .u-over").nth(1).dblclick()
    page.wait_for_function(f"document.getElementById('range').value === '{whole}'")


def ends_of(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"[\d.]+", text)]


def ends(page: Any) -> list[float]:
    return ends_of(page.inner_text("#range"))


def test_run_tells_the_span_under_the_cursor(page: Any, report: Report) -> None:
    show(page, report.page(report.plan.entries[0].run))
    page.click("[data-kind=profiled]")
    page.locator("#lanes-scroll .u-over").scroll_into_view_if_needed()
    box = page.locator("#lanes-scroll .u-over").bounding_box()
    seen = set()
    for share in range(1, 20):
        page.mouse.move(box["x"] + box["width"] * share / 20, box["y"] + 20)
        seen.add(page.inner_text("#reading"))
    assert any(re.search(r"rank 0, \w+: \w+.* ms from [\d.]+ s", text) for text in seen)


def test_run_shows_kernels_and_single_devices(page: Any, report: Report) -> None:
    show(page, report.page(report.plan.entries[0].run))
    assert page.locator("#kernel-table .tabulator-row").count() > 3
    page.select_option("#devices", "node 1 gpu3")
    assert "node 1 gpu3" in page.locator("#charts .u-legend").first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_either_ground(page: Any, report: Report, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    show(page, report.front)
    for selector in ("body", "#table .tabulator-row", "#table .tabulator-header", ".findings .soft"):
        assert contrast(page, selector) > 4.5, selector
    svg = page.evaluate("getComputedStyle(document.querySelector('.picture svg text')).fill")
    assert (sum(channels(svg)) > 384) == (scheme == "dark")


def contrast(page: Any, selector: str) -> float:
    """Return the contrast of text to the ground behind it by WCAG 2.1: (lighter + 0.05) / (darker + 0.05)."""
    text, ground = page.evaluate(READABLE, selector)
    lighter, darker = sorted((luminance(channels(text)), luminance(channels(ground))), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def channels(colour: str) -> list[float]:
    return [float(found) for found in re.findall(r"[\d.]+", colour)[:3]]


def luminance(colour: list[float]) -> float:
    linear = [(c / 255) / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_narrow_screen_has_nothing_beside_it(page: Any, report: Report) -> None:
    page.set_viewport_size({"width": 500, "height": 800})
    for path in (report.front, report.page(report.plan.entries[0].run)):
        show(page, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_everything_has_a_name_for_screen_readers(page: Any, report: Report) -> None:
    for path in (report.front, report.page(report.plan.entries[0].run)):
        show(page, path)
        assert page.evaluate(NAMELESS) == []
        levels = page.eval_on_selector_all("h1, h2, h3, h4", "found => found.map(one => Number(one.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


def test_print_keeps_headings_with_text_and_figures_whole(page: Any, report: Report) -> None:
    show(page, report.front)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".fold:not([open])").count() == 0
    page.set_viewport_size({"width": 718, "height": 970})  # A4 less margins of 1 cm is 19 cm wide
    rules = page.evaluate(
        """() => [["h2", "breakAfter"], [".picture", "breakInside"], ["#table", "display"]].map(([selector, name]) =>
            getComputedStyle(document.querySelector(selector))[name])"""
    )
    assert rules[:2] == ["avoid", "avoid"]
    # A letter less its margins is 25.9 cm high: with question and answer above it a figure fits, or they stand alone.
    heights = page.eval_on_selector_all(
        "#figures > section",
        """found => found.map(one => one.querySelector(".picture").getBoundingClientRect().bottom
            - one.getBoundingClientRect().top)""",
    )
    assert 0 < max(heights) / 96 * 2.54 < 24
    assert page.locator(".bar").first.is_hidden()
    assert len(page.pdf(prefer_css_page_size=True)) > 10_000
