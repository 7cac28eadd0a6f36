"""The telemetry stage: joins the recordings of all nodes on one clock and marks steps and gaps."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, Node, read_manifest
from triplepoint.recording import Recording, read_recording
from triplepoint.tables import SAMPLES, STEPS, TELEMETRY
from triplepoint.units import NS_PER_S


def align_run(raw: Path, out: Path) -> None:
    """Write `telemetry.parquet` of a run from its recordings and steps.

    Args:
        raw: Folder `raw/` of the run.
        out: File to write, `tables.TELEMETRY`. It has no rows of nodes without telemetry in the manifest.

    Raises:
        UserError: If a recording that the manifest lists is missing or damaged.
    """
    manifest = read_manifest(raw / "manifest.json")
    parts = []
    for node in manifest.nodes:
        recording = raw / "telemetry" / f"node{node.node}.arrow"
        try:
            content = read_recording(recording)
        except UserError as error:
            if node.telemetry is None:
                continue
            raise UserError(
                f"{error}; it was whole when the run ended: triplepoint launch {manifest.run} --force"
            ) from None
        _check_whole(content, recording, node, manifest)
        parts.append(_align_node(content, recording, node, manifest, raw))
    table = pa.concat_tables(parts) if parts else TELEMETRY.schema().empty_table()
    TELEMETRY.write(out, table)


def _check_whole(content: Recording, path: Path, node: Node, manifest: Manifest) -> None:
    """Say on standard error if a recording has fewer samples than when its run ended: its file was cut off since.

    Raises:
        UserError: If no sample is left.
    """
    num, num_recorded = content.samples.num_rows, node.telemetry.num_samples if node.telemetry is not None else 0
    if num >= num_recorded:
        return
    line = f"{path}: {num:,} of {num_recorded:,} samples can be read: the file was damaged after the run ended"
    if not num:
        raise UserError(f"{line}; restore it from a copy, or launch again: triplepoint launch {manifest.run} --force")
    print(f"triplepoint: {line}; telemetry lacks the others", file=sys.stderr)


def _align_node(content: Recording, path: Path, node: Node, manifest: Manifest, raw: Path) -> pa.Table:
    """Return the samples of a node as table `telemetry`, on the first node's clock."""
    samples = content.samples
    t_ns = samples["t_ns"].to_numpy()
    step, kind = _steps_at(t_ns, node, raw / "steps.parquet")
    gaps = np.zeros(len(t_ns), bool)
    devices = samples["device"].to_numpy(zero_copy_only=False)
    for lane, period_s in ((~content.is_fast, content.period_s), (content.is_fast, content.fast_period_s)):
        if period_s is not None:
            gaps[lane] = mark_gaps(t_ns[lane], devices[lane], period_s)
    columns = {name: samples[name] for name in SAMPLES.schema().names}
    columns |= {
        "node": pa.array(np.full(len(t_ns), node.node)),
        "t_ns": pa.array(manifest.on_first_clock(node, t_ns)),
        "step": step,
        "kind": kind,
        "is_gap": pa.array(gaps),
    }
    return TELEMETRY.check(pa.table(columns), path)


def _steps_at(t_ns: np.ndarray, node: Node, steps_file: Path) -> tuple[pa.Array, pa.Array]:
    """Return step number and kind at each time, null between steps.

    A step lasts from its first start to its last end among the ranks of the node.
    """
    if not steps_file.is_file():
        nulls = pa.nulls(len(t_ns))
        return nulls.cast(pa.int64()), nulls.cast(pa.string())
    steps = STEPS.read(steps_file).to_pydict()
    ranks = {device.rank for device in node.devices}
    windows: dict[int, tuple[int, int, str]] = {}
    for rank, step, kind, start, end in zip(
        steps["rank"], steps["step"], steps["kind"], steps["t_start_ns"], steps["t_end_ns"], strict=True
    ):
        if rank in ranks:
            low, high, _ = windows.get(step, (start, end, kind))
            windows[step] = min(low, start), max(high, end), kind
    numbers = np.full(len(t_ns), -1)
    for step, (start, end, _) in windows.items():
        numbers[(t_ns >= start) & (t_ns <= end)] = step
    kinds = [None if number < 0 else windows[number][2] for number in numbers.tolist()]
    return pa.array(numbers, mask=numbers < 0), pa.array(kinds, pa.string())


def mark_gaps(t_ns: np.ndarray, device: np.ndarray, period_s: float) -> np.ndarray:
    """Return whether more than two periods have passed since the previous sample of the same device.

    Args:
        t_ns: Sample times, ascending. Shape (num_samples,). Unit: ns.
        device: Device names. Shape (num_samples,).
        period_s: Intended time between samples. Unit: s.
    """
    gaps = np.zeros(len(t_ns), dtype=bool)
    for name in np.unique(device):
        rows = np.flatnonzero(device == name)
        gaps[rows[1:]] = np.diff(t_ns[rows]) > 2 * period_s * NS_PER_S
    return gaps
