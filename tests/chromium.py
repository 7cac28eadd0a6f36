"""Headless Chromium for tests of pages, driven by playwright."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser, and close it afterwards."""
    from playwright import sync_api

    with sync_api.sync_playwright() as started:
        # Chromium has no sandbox for root, as which containers run.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
