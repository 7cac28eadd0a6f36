"""Recordings of other tools, read in tests."""

from pathlib import Path

import numpy as np

from triplepoint.importers.clocks import Span
from triplepoint.importers.folder import Telemetry, Wanted, list_folder, read_telemetry
from triplepoint.recording import Part

SAMPLES = Path(__file__).parent / "data" / "importers"


def read(path: Path, wanted: Wanted | None = None, work: Span | None = None) -> Telemetry:
    """Return the telemetry of a folder or a file."""
    wanted = wanted or Wanted(timezone="UTC")
    return read_telemetry(list_folder(path, wanted.mapping), path, wanted, work, lambda line: None)


def part(telemetry: Telemetry, device: str = "gpu0", host: str | None = None) -> Part:
    """Return the samples of a device, of the first host unless one is named."""
    samples = telemetry.hosts[host or next(iter(telemetry.hosts))]
    return next(part for part in samples.parts if part.device == device)


def values(found: Part, column: str) -> np.ndarray:
    """Return a column of a device's samples."""
    return found.values[:, list(found.columns).index(column)]
