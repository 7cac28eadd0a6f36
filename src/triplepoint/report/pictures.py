"""Figures of the report page: image, size on the screen, and caption."""

import base64
import io
from pathlib import Path
from typing import Any

import docutils.core  # type: ignore[import-untyped]
import docutils.utils  # type: ignore[import-untyped]
from markupsafe import Markup

from triplepoint.errors import UserError


def picture(name: str, figs: Path, captions: Path) -> dict[str, Any]:
    """Return what the page's template needs to show a figure.

    Args:
        name: The figure.
        figs: Folder of the figures.
        captions: Folder with one reStructuredText caption per figure.

    Raises:
        UserError: If the figure or its caption is missing or damaged.
    """
    path = figs / f"{name}.png"
    try:
        image = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such figure; draw it with 'triplepoint figure {name}'") from None
    title = name.replace("_", " ").capitalize()
    caption, plain = _caption(captions / f"{name}.rst")
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
