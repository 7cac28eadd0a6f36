"""Reads recordings of other tools in tests."""

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
    """Return the samples of a device of a host, by default of the first host."""
    samples = telemetry.hosts[host or next(iter(telemetry.hosts))]
    return next(part for part in samples.parts if part.device == device)


def values(samples: Part, column: str) -> np.ndarray:
    """Return a column of the samples of a device."""
    return samples.values[:, list(samples.columns).index(column)]
