"""Libraries in the report are those their list names, and are told where they stand."""

import hashlib
import re
from pathlib import Path

VENDOR = Path(__file__).parents[3] / "src" / "triplepoint" / "report" / "vendor"
ROW = re.compile(r"^\| `(\S+)` \| (\S+) \| (\S+) \| MIT, `(\S+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE)


def listed() -> list[tuple[str, ...]]:
    return ROW.findall((VENDOR / "README.md").read_text())


def test_libraries_are_as_published() -> None:
    assert len(listed()) == 5
    for name, _, _, _, digest in listed():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_libraries_come_with_their_licence_and_nothing_is_unlisted() -> None:
    licences = {licence for _, _, _, licence, _ in listed()}
    assert all("Permission is hereby granted" in (VENDOR / licence).read_text() for licence in licences)
    assert {path.name for path in VENDOR.iterdir()} == {name for name, *_ in listed()} | licences | {"README.md"}


def test_page_names_the_versions_that_are_listed() -> None:
    page = (VENDOR.parent / "templates" / "front.html").read_text()
    versions = {package: version for _, package, version, _, _ in listed()}
    assert f"Tabulator {versions['tabulator-tables']}, uPlot {versions['uplot']}, fflate {versions['fflate']}," in page
