"""Trace files that hold far more than they show."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from triplepoint.errors import UserError
from triplepoint.trace.kineto.source import Source


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\0"])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_blanks_without_end_are_refused(codec: str, blank: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    with pa.CompressedOutputStream(str(path), codec) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(66):
            file.write(blank * 1_000_000)
    with pytest.raises(UserError, match="rank0.json: more than 64 MB of blanks or zeros at one place"):
        for _ in Source(path).pieces():
            pass


def test_blanks_between_events_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    text = b'{"traceEvents": [' + (b" " * 3_000_000 + b"{},") * 3 + b"{}]}"
    path.write_bytes(gzip.compress(text, 1))
    assert b"".join(Source(path).pieces()) == text
