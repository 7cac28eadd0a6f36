"""The documentation as a site: it builds without a network, every page is in it, and sentences stay short."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
WORDS = 25
"""Most words of a sentence, as a habit."""


def build(root: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    """Build the site of a repository, as `make docs` does."""
    pytest.importorskip("mkdocs", reason="mkdocs-material is not installed: make env")
    # Proxies that answer nobody: a build that asks the network fails.
    blind = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, env=os.environ | blind, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_build_fails_on_a_link_to_an_anchor_that_is_not_there(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("README.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "docs/amd.md").open("a") as page:
        page.write("\n[nowhere](glossary.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1 and "'glossary.md#nowhere'" in done.stderr


def test_site_has_every_page_and_a_search_index(site: Path) -> None:
    built = {path.stem for path in site.glob("*.html")} - {"404", "index"}
    assert built == {Path(name).stem for name in PAGES} - {"README"}
    index = (site / "search" / "search_index.js").read_text()
    assert "Which layout of a model is fastest on my GPUs" in index


def test_site_loads_nothing_from_a_network(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:)?//[^\">]*")
    assert [found[0] for path in site.glob("*.html") for found in loads.finditer(path.read_text())] == []
    assert [path.name for path in site.rglob("*.css") if re.search(r"url\(\"?https?:", path.read_text())] == []
    assert (site / "assets" / "iframe-worker.js").is_file()


def test_site_shows_no_list_as_text(site: Path) -> None:
    """Markdown without a blank line before a list, which this builder takes for text."""
    broken = [path.name for path in site.glob("*.html") if re.search(r"<p>[^<]*\n(?:- |1\. )", path.read_text())]
    assert broken == []


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose: no code, tables or headings; a span of code counts as one word."""
    text = re.sub(r"^(```|~~~).*?^\1|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"^(\||#|    ).*$|^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [found for part in paragraphs for found in re.split(r"(?<=[.?!:;])\s+(?=[A-Z*\"(]|code)", part) if found]


def share_of_long(text: str) -> float:
    """Return the share of sentences of more than `WORDS` words."""
    found = sentences(text)
    return sum(len(sentence.split()) > WORDS for sentence in found) / max(len(found), 1)


def test_sentences_are_told_apart_and_counted() -> None:
    text = "# Head\n\nOne two. Three `a b c` four: no break.\n\n- An item.\n- " + "word " * 26 + ".\n\n| a | b |\n"
    assert [len(sentence.split()) for sentence in sentences(text)] == [2, 5, 2, 27]
    assert share_of_long(text) == 0.25


MOST = 0.15
"""Largest share of longer sentences in a page; most pages are below 0.1."""


@pytest.mark.parametrize("page", PAGES)
def test_sentences_of_a_page_are_short(page: str) -> None:
    assert share_of_long(PAGES[page].read_text(encoding="utf-8")) <= MOST


NOT = (
    r"owes? each other",
    r"either whole or not there",
    r"one and the same",
    r"\bknown to (?:little|[\d.]+ ?(?:%|K))",
    r"\bnever repeated for nothing",
    r"\bhangs? on\b",
    r"\bshare[sd]? out\b",
    r"\bheld down\b|\bholds? clocks down\b",
    r"\btakes \d+ W\b",
)
"""Private words, each with a usual one: depends on, shard, throttled, draws, the uncertainty is."""
SHOWN = [*PAGES.values(), *sorted((ROOT / "workflow/report").glob("*.rst"))]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_page_has_no_private_words(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", path.read_text(encoding="utf-8"))
    found = [match[0] for phrase in NOT for match in re.finditer(phrase, re.sub(r"\s+", " ", text))]
    assert found == []
