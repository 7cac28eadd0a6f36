"""Jobs of a projection: a point scaled to a number of GPUs on a network, and the ratio of steps on two networks."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from triplepoint.advise.project.interval import Interval
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig, Topology, changed, with_adapters
from triplepoint.config.rules import fold, refusal
from triplepoint.errors import PointError, UserError
from triplepoint.metrics import Z90
from triplepoint.predictions import Request
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import fabric_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict.point import job_on_cluster
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.step import simulate_step

Batch = Literal["grown", "fixed"]


@dataclass(frozen=True)
class Network:
    """Network between nodes; None: as in the cluster.

    Attributes:
        topology: Fat tree, rail-optimised or dragonfly.
        oversubscription: Bandwidth into a leaf switch or group over the bandwidth out of it.
        adapters: Number of adapters of a node, and the speed of each in Gb/s.
        gpus_per_leaf: GPUs below a leaf switch or in a group.
    """

    topology: Topology | None = None
    oversubscription: float | None = None
    adapters: tuple[int, float] | None = None
    gpus_per_leaf: int | None = None

    def of(self, cluster: ClusterConfig, num_gpus: int) -> ClusterConfig:
        """Return a cluster with at least a number of GPUs on this network."""
        num_nodes = -(-num_gpus // cluster.gpus_per_node)
        given = {name: getattr(self, name) for name in ("topology", "oversubscription", "gpus_per_leaf")}
        given = {name: value for name, value in given.items() if value is not None}
        larger = changed(cluster, num_nodes=max(num_nodes, cluster.nodes_per_domain), **given)
        return with_adapters(larger, *self.adapters) if self.adapters else larger


def read_adapters(text: str) -> tuple[int, float]:
    """Return the number of adapters of a node and the speed of each in Gb/s from a text such as `8x400`.

    Raises:
        ValueError: If the text has another form.
    """
    match = re.fullmatch(r"([1-9]\d?)x(\d{1,5}(?:\.\d{1,3})?)", text)
    if match is None or not float(match[2]) >= 1:
        raise ValueError(f"found {text[:40]!r}, expected NUMBERxGb/s, such as 8x400")
    return int(match[1]), float(match[2])


class Scaled(NamedTuple):
    """A job of one size, its cluster and its network."""

    job: Job
    cluster: ClusterConfig
    network: Network


def scale_job(request: Request, network: Network, batch: Batch, num_gpus: int, config: Path) -> Scaled:
    """Return the job of a point at another size.

    Args:
        request: The point.
        network: Network between nodes.
        batch: Whether the global batch grows with the replicas or is fixed.
        num_gpus: Number of GPUs, a multiple of those of a replica.
        config: Folder of the configuration.

    Raises:
        UserError: If the rules refuse the job.
    """
    point, layout = request.point, request.point.layout
    dp = num_gpus // (layout.tp * layout.pp * layout.cp)
    layout = layout.model_copy(update={"dp": dp})
    sequences = point.global_batch_size
    if batch == "grown":
        sequences = point.num_microbatches * point.micro_batch_size * dp
    # Traced ranks, hosts and power limits belong to the run, not to the job.
    update = {
        "layout": layout, "num_gpus": num_gpus, "global_batch_size": sequences, "trace_ranks": "all", "hosts": (),
        "gpu_power_limits_w": (),
    }  # fmt: skip
    larger = fold(point.model_copy(update=update))
    try:
        job, cluster = job_on_cluster(larger, config, request.stack)
        cluster = network.of(cluster, num_gpus)
        gpu = Catalogue(config).gpu_of(cluster)
        assert gpu is not None, "a job has GPUs"
        if reason := refusal(larger, cluster, gpu):
            raise UserError(f"project: {num_gpus} GPUs, --batch {batch}: {reason}")
        fabric = fabric_of(cluster, gpu, config)
    except PointError as error:
        raise UserError(f"project: {num_gpus} GPUs: {error}") from None
    fabric = fabric if job.software.reduces_in_switches else fabric.without_reduction()
    return Scaled(replace(job, fabric=fabric), cluster, network)


def ratio_of_steps(ratio: float, one: Job, other: Job, config: Path) -> Interval:
    """Return the ratio of the step times of a job on two networks, with its interval.

    Computation time and the bandwidth of each kind of link between nodes are changed by the half-width of their
    interval, one at a time. Both jobs are simulated again at calibrated clocks, so that common errors cancel.

    Args:
        ratio: Step time of the first job over that of the second.
        one: A job.
        other: The same job on another network.
        config: Folder of the configuration.
    """
    calibration = read_calibrations(config)[0]
    constants = calibration.constants(one)
    jobs, usual = (one, other), simulate_step(one, constants, config)

    def log_ratio(slower: float = 0.0, kind: str = "", less: float = 0.0) -> float:
        moved = replace(constants, factor=constants.factor * math.exp(slower))
        times = [
            simulate_step(_with_less(job, less) if kind == _network_kind(job) else job, moved, config).time_s
            for job in jobs
        ]
        return math.log(times[0] / times[1])

    width = calibration.quantile * calibration.scale(one, usual.uncertainty)
    middle, changes = log_ratio(), [log_ratio(slower=width)]
    for kind in {_network_kind(job) for job in jobs} - {""}:
        changes.append(log_ratio(kind=kind, less=Z90 * load_link(kind, config).sigma))
    half = math.hypot(*(change - middle for change in changes))
    return Interval(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def _network_kind(job: Job) -> str:
    """Return the kind of link between nodes; empty for a job without a network."""
    return next((level.kind for level in job.fabric.levels if level.is_network), "")


def _with_less(job: Job, less: float) -> Job:
    """Return a job with a slower network, by a difference of the log bandwidth."""
    return replace(job, fabric=job.fabric.faster(True, math.exp(-less)))
