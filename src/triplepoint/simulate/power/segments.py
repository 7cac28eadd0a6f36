"""From kernels and messages with start and end to what runs at any time, and to means over bins of the same energy."""

from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.power.gpu import Activity, Float, Int64, Number

_FIELDS = ("awake", "tensor", "sm", "hbm", "link", "randomness", "clock_bound")
_RATES = ("tensor", "sm", "hbm", "link")

OVERLAP_EXPONENT = 3.0
"""How well memory hides behind computation; `overlap_exponent` of `config/kernels/`, 3.03 as fitted on H100."""


@dataclass(frozen=True)
class Peaks:
    """Peak rates of one device, as `config/gpus/` has them.

    Attributes:
        tensor_flops: Of matrix products at the kernel's precision. Unit: FLOP/s.
        sm_flops: Of everything else. Unit: FLOP/s.
        hbm: Memory. Unit: byte/s.
        link: Links to other GPUs, both directions together. Unit: byte/s.
    """

    tensor_flops: float
    sm_flops: float
    hbm: float
    link: float


def kernel_activity(
    is_tensor: Number, flops: Number, num_bytes: Number, duration_s: Number, peaks: Peaks, randomness: Number = 1.0
) -> Activity:
    """Return what kernels do to the units of a device.

    Args:
        is_tensor: Whether they are matrix products (gemm, attention), 0 or 1.
        flops: Of every kernel. Unit: FLOP.
        num_bytes: Read from and written to memory. Unit: byte.
        duration_s: At the highest clock. Unit: s.
        peaks: Of the device.
        randomness: Of operands, 0-1.
    """
    matrix = np.asarray(is_tensor, dtype=float)
    tensor = matrix * flops / (np.asarray(duration_s) * peaks.tensor_flops)
    sm = (1.0 - matrix) * flops / (np.asarray(duration_s) * peaks.sm_flops)
    hbm = np.minimum(np.asarray(num_bytes) / (np.asarray(duration_s) * peaks.hbm), 1.0)
    core = np.maximum(tensor, sm) ** OVERLAP_EXPONENT
    # How time answers to the clock where core and memory overlap in a p-norm. Nothing on either side: latency, which
    # the clock is part of but memory is not known to be.
    clock_bound = core / np.maximum(core + hbm**OVERLAP_EXPONENT, 1e-30)
    return Activity(np.ones_like(tensor), tensor, sm, hbm, 0.0 * tensor, np.broadcast_to(randomness, tensor.shape),
                    clock_bound)  # fmt: skip


def overlay(start_ns: Int64, end_ns: Int64, activity: Activity, until_ns: int) -> tuple[Int64, Activity]:
    """Return what runs on a device at any time, where segments of several streams may overlap.

    Rates of what runs together add up; those of memory and links to 1 at most. Randomness is that of the segments
    weighted by their rates, and the time goes with the clock as far as that of the segment that goes with it most.

    Args:
        start_ns: Start of every segment. Unit: ns.
        end_ns: End of every segment. Unit: ns.
        activity: Of every segment; shape (num_segments,).
        until_ns: End of the timeline, which starts at 0; what lies outside is cut off. Unit: ns.

    Returns:
        Edges in ns, shape (num_pieces + 1,), and what runs between them, shape (num_pieces,).
    """
    start_ns, end_ns = np.clip(start_ns, 0, until_ns), np.clip(end_ns, 0, until_ns)
    edges = np.unique(np.concatenate([[0, until_ns], start_ns, end_ns]))
    first, last = np.searchsorted(edges, start_ns), np.searchsorted(edges, end_ns)
    columns = {name: np.broadcast_to(getattr(activity, name), start_ns.shape) for name in _FIELDS}
    rate = np.asarray(sum(columns[name] for name in _RATES)) + 1e-12

    def added(value: Float) -> Float:
        change = np.zeros(len(edges))
        np.add.at(change, first, value)
        np.subtract.at(change, last, value)
        # What was added and taken off again leaves rounding behind.
        return np.asarray(np.clip(np.cumsum(change)[:-1], 0.0, None))

    weight = added(rate)
    found = {name: added(columns[name]) for name in ("awake", *_RATES)}
    found |= {name: np.minimum(found[name], 1.0) for name in ("awake", "hbm", "link")}
    is_on = weight > 1e-9
    mixed = added(columns["randomness"] * rate)
    found["randomness"] = np.where(is_on, np.minimum(mixed / np.where(is_on, weight, 1.0), 1.0), 1.0)
    found["clock_bound"] = _highest(first, last, columns["clock_bound"], len(edges) - 1)
    return edges, Activity(**found)


def _highest(first: Int64, last: Int64, value: Float, num_pieces: int) -> Float:
    """Return for every piece the highest value of the segments over it."""
    found = np.zeros(num_pieces)
    # From low to high, so that the highest is written last.
    for segment in np.argsort(value, kind="stable"):
        found[first[segment] : last[segment]] = value[segment]
    return found


def bin_means(edges_ns: Int64, values: Float, bins_ns: Int64) -> Float:
    """Return means over bins of what is constant between edges; the integral stays what it was.

    Args:
        edges_ns: Borders of the pieces; shape (num_pieces + 1,). Unit: ns.
        values: Of every piece; shape (num_pieces,).
        bins_ns: Borders of the bins, within the edges; shape (num_bins + 1,). Unit: ns.
    """
    integral = np.concatenate([[0.0], np.cumsum(values * np.diff(edges_ns))])
    at_bins = np.interp(bins_ns, edges_ns, integral)
    return np.asarray(np.diff(at_bins) / np.diff(bins_ns))


def bin_activity(edges_ns: Int64, activity: Activity, bins_ns: Int64) -> Activity:
    """Return the mean activity over bins: rates by time, randomness by rates, the hold of the clock by time awake."""
    columns = {name: np.asarray(getattr(activity, name), dtype=float) for name in _FIELDS}
    found = {name: bin_means(edges_ns, columns[name], bins_ns) for name in ("awake", *_RATES)}
    rate = sum(columns[name] for name in _RATES)
    weight = bin_means(edges_ns, np.asarray(rate), bins_ns)
    mixed = bin_means(edges_ns, columns["randomness"] * rate, bins_ns)
    found["randomness"] = np.where(weight > 0.0, mixed / np.where(weight > 0.0, weight, 1.0), 1.0)
    found["clock_bound"] = bin_means(edges_ns, columns["clock_bound"], bins_ns)
    return Activity(**found)
