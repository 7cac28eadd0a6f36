"""Samples on disk: an Arrow stream flushed every second, readable after a kill."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.tables import SAMPLES

_PERIOD = b"period_s"
_ABSENT = b"absent"


class Recorder:
    """Writes samples of one node to an Arrow IPC stream; what was written stays readable whatever happens next."""

    def __init__(self, path: Path, period_s: float, absent: dict[str, str]) -> None:
        """Open the stream.

        Args:
            path: File to write, `node<N>.arrow`.
            period_s: Time between samples. Unit: s.
            absent: Metrics no device here can measure, with the reason of each.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = SAMPLES.schema()
        account = {_PERIOD: repr(period_s).encode(), _ABSENT: json.dumps(absent).encode()}
        self._schema = schema.with_metadata({**(schema.metadata or {}), **account})
        self._file = path.open("wb")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)
        self._file.flush()
        self._rows: list[dict[str, Any]] = []

    def add(self, t_ns: int, read_latency_ns: int, device: str, values: dict[str, float]) -> None:
        """Keep one sample until the next flush."""
        self._rows.append({"t_ns": t_ns, "read_latency_ns": read_latency_ns, "device": device, **values})

    def flush(self) -> None:
        """Hand all kept samples to the operating system."""
        if self._rows:
            self._stream.write_batch(pa.RecordBatch.from_pylist(self._rows, self._schema))
            self._rows.clear()
        self._file.flush()

    def close(self) -> None:
        """Flush and end the stream."""
        self.flush()
        self._stream.close()
        self._file.close()


@dataclass(frozen=True)
class Recording:
    """What a recorder left: `samples` is a checked `tables.SAMPLES`."""

    samples: pa.Table
    period_s: float
    absent: dict[str, str]

    @property
    def measured(self) -> tuple[str, ...]:
        """Metrics with at least one value."""
        names = [c.name for c in SAMPLES.columns[3:]]
        return tuple(name for name in names if self.samples[name].null_count < self.samples.num_rows)


def read_recording(path: Path) -> Recording:
    """Return every whole batch of the stream in `path`; a batch cut off by a kill is left out.

    Raises:
        UserError: If the file is missing or is not such a stream.
    """
    batches: list[pa.RecordBatch] = []
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
            with contextlib.suppress(pa.ArrowInvalid, OSError):  # killed while writing its last batch
                batches.extend(stream)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the sampler of this node wrote nothing") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not an Arrow stream ({error})") from None
    metadata = schema.metadata or {}
    if _PERIOD not in metadata or _ABSENT not in metadata:
        raise UserError(f"{path}: an Arrow stream, but not one a triplepoint sampler wrote")
    samples = SAMPLES.check(pa.Table.from_batches(batches, schema), path)
    return Recording(samples, float(metadata[_PERIOD]), json.loads(metadata[_ABSENT]))
