"""Recordings of a simulated run: counters of bytes over links, and sensors of power, heat and clocks."""

from pathlib import Path

import numpy as np

from triplepoint.config.plan import PlannedRun
from triplepoint.recording import Part, Recorder
from triplepoint.simulate.artefacts.course import course_of
from triplepoint.simulate.artefacts.groups import groups_of, groups_used
from triplepoint.simulate.artefacts.kineto import EPOCH_NS
from triplepoint.simulate.artefacts.links import Links
from triplepoint.simulate.artefacts.sensed import columns_sensed, meter_times, sense_gpus, sense_host
from triplepoint.simulate.artefacts.simulated import Recorded, Simulated, one_ns
from triplepoint.simulate.timeline.durations import Float
from triplepoint.tables.telemetry import CUMULATIVE, METRICS
from triplepoint.units import NS_PER_S

NOT_SIMULATED = "simulated: no model of it"
"""Reason why a simulated run has no samples of most other columns."""

_MOST_SAMPLES = 200
"""Largest number of even samples of a device; the trace has the details between them."""

_FABRIC = ("infiniband_tx_bytes", "infiniband_rx_bytes")


def recorded_columns(simulated: Recorded, has_links: bool) -> tuple[str, ...]:
    """Return the columns of samples that have values: of GPUs, then of hosts; with links, also counters of bytes."""
    sensed = columns_sensed(simulated)
    links = (_gpu_columns(simulated), _FABRIC) if has_links else ((), ())
    return (*links[0], *sensed.gpu, *sensed.host, *links[1])


def absent_columns(simulated: Recorded, has_links: bool) -> dict[str, str]:
    """Return the columns of samples without values, with the reason for each."""
    gpu = simulated.job.gpu.name
    unknown = f"power and heat of {gpu} are not known; triplepoint doctor --files {gpu} says what is missing"
    return {
        name: NOT_SIMULATED if simulated.heated else unknown
        for name in METRICS
        if name not in recorded_columns(simulated, has_links)
    }


def sample_period_ns(planned: PlannedRun, simulated: Recorded) -> int:
    """Return the time between samples. Unit: ns."""
    total = course_of(planned, simulated).length_ns
    return max(round(planned.point.telemetry_period_s * NS_PER_S), -(-total // _MOST_SAMPLES))


def sample_times(planned: PlannedRun, simulated: Recorded) -> np.ndarray:
    """Return the times of samples, from the start of the run to some time after its end; shape (num_samples,).

    Unit: ns.

    Every step has a sample at its end, so that counters give the energy of exactly that step.
    """
    ends = course_of(planned, simulated).starts_ns
    return np.union1d(_even_times(planned, simulated), [*ends, ends[-1] + one_ns(simulated.after_s)])


def _even_times(planned: PlannedRun, simulated: Recorded) -> np.ndarray:
    """Return the times at which gauges are read. Unit: ns.

    Gauges are not read at the ends of steps: the same moment of each step would weigh too much.
    """
    return np.arange(0, course_of(planned, simulated).starts_ns[-1], sample_period_ns(planned, simulated))


def write_recordings(folder: Path, planned: PlannedRun, simulated: Recorded, counters: Float | None) -> None:
    """Write the recording of every node.

    Args:
        folder: Folder of recordings.
        planned: The planned run.
        simulated: The simulated step.
        counters: Bytes of every rank at `sample_times`, from `count_bytes`; None if they are not counted.
    """
    t_ns, per_node, has_links = sample_times(planned, simulated), planned.point.cluster.gpus_per_node, True
    if counters is None:
        counters, has_links = np.empty((planned.point.num_gpus, len(t_ns), 0)), False
    course, period_s = course_of(planned, simulated), sample_period_ns(planned, simulated) / NS_PER_S
    sensed, recorded = columns_sensed(simulated), recorded_columns(simulated, has_links)
    gpu_columns = (*_gpu_columns(simulated), *sensed.gpu) if has_links else sensed.gpu
    fabric = _FABRIC if has_links else ()
    is_even = np.isin(t_ns, _even_times(planned, simulated))
    is_gauge = np.array([name not in CUMULATIVE for name in sensed.gpu], dtype=bool)
    inside_is_pcie = simulated.job.fabric.levels[0].counters == "pcie"
    for node in range(planned.point.num_nodes):
        of_node = counters[node * per_node : (node + 1) * per_node]
        recorder = Recorder(folder / f"node{node}.arrow", period_s, absent_columns(simulated, has_links), recorded)
        latency = np.zeros_like(t_ns)
        host_ns = np.union1d(t_ns, meter_times(simulated, course, node, period_s))
        host = sense_host(simulated, course, node, host_ns, period_s)
        if has_links:
            # Counters of adapters are read when those of GPUs are; the meter has moments of its own.
            counted = np.full((len(host_ns), len(fabric)), np.nan)
            counted[np.isin(host_ns, t_ns)] = of_node[:, :, (1, 3)].sum(axis=0)
            host = np.concatenate([counted, host], axis=1)
        parts = [Part("host", EPOCH_NS + host_ns, np.zeros_like(host_ns), (*fabric, *sensed.host), host)]
        gpus = sense_gpus(simulated, course, node, t_ns)
        gpus[:, ~is_even[:, None] & is_gauge] = np.nan
        for number, values in enumerate(of_node):
            if has_links and inside_is_pcie:
                values = values[:, ::2] + values[:, 1::2]
            both = np.concatenate([values, *gpus[number : number + 1]], axis=1)
            parts.append(Part(f"gpu{number}", EPOCH_NS + t_ns, latency, gpu_columns, both))
        recorder.write(parts)
        recorder.close()


def count_bytes(planned: PlannedRun, simulated: Simulated, t_ns: np.ndarray) -> Float:
    """Return the bytes of every rank up to some times.

    Args:
        planned: The planned run.
        simulated: The simulated step.
        t_ns: Times from the start of the run; shape (num_times,). Unit: ns.

    Returns:
        Bytes sent inside the node and out of it, received inside and from outside; shape (num_ranks, num_times, 4).
    """
    steps, share = course_of(planned, simulated).inside(t_ns)
    inside_s = share * simulated.timeline.step_time_s
    links = Links(simulated, planned.point.cluster.gpus_per_node)
    names, end = groups_used(simulated.stages, simulated.job), np.array([np.inf])
    flows = [links.flow(rank, groups_of(simulated.job, rank, names)) for rank in range(simulated.job.num_gpus)]
    # Ranks with the same traffic share a flow.
    distinct = {id(flow): flow for flow in flows}
    num_bytes = {key: steps[:, None] * flow.until(end) + flow.until(inside_s) for key, flow in distinct.items()}
    return np.array([num_bytes[id(flow)] for flow in flows])


def _gpu_columns(simulated: Recorded) -> tuple[str, ...]:
    """Return the counters of bytes of a GPU: of links inside the node, and of PCIe, which leads out of it."""
    kinds = dict.fromkeys((simulated.job.fabric.levels[0].counters, "pcie"))
    return tuple(f"{kind}_{way}_bytes" for way in ("tx", "rx") for kind in kinds)
