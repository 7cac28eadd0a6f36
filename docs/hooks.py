"""Hooks of `mkdocs.yml`: README.md is the home page, and files outside docs/ are named rather than linked."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page: README.md, whose links are relative to the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page as this site's Markdown reads it.

    Links to files of the repository outside docs/ become their paths; a link to README.md leads home. A bar in code
    in a table is escaped for other readers of Markdown, which this one would show.
    """
    markdown = re.sub(r"\]\(\.\./README\.md(#[\w-]+)?\)", r"](index.md\1)", markdown)
    markdown = re.sub(r"\[([^\]\n]+)\]\(\.\./([^)\s]+)\)", r"\1 (`\2`)", markdown)
    rows = re.compile(r"^\|.*$", flags=re.MULTILINE)
    code = re.compile(r"`[^`\n]+`")
    return rows.sub(lambda row: code.sub(lambda span: span[0].replace(r"\|", "|"), row[0]), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take the script that lets search work in pages opened as files from the site: iframe-worker 1.0.4, MIT."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js")


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Do the same for the page of a missing address."""
    return output_content.replace("https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js")
