"""Cases of a what-if analysis: a job on its cluster, predicted as by `triplepoint predict`."""

from dataclasses import dataclass, replace
from pathlib import Path

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import run_id
from triplepoint.errors import PointError
from triplepoint.predictions import Request
from triplepoint.prices import TOKENS_PRICED, Prices
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.fabric import fabric_of
from triplepoint.simulate.inference import Serving, serving_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict.prediction import Prediction, predict_job
from triplepoint.simulate.stacks import OF_ENGINE
from triplepoint.status import PredictionStatus

RUNS = (PredictionStatus.OK, PredictionStatus.UNDECIDED)
"""Statuses of a case that runs."""


@dataclass(frozen=True)
class Case:
    """One point, ready to be simulated.

    Attributes:
        name: Run id of the point.
        job: The job.
        serving: Batch of inference; None for training.
        cluster: Cluster of the job.
    """

    name: str
    job: Job
    serving: Serving | None
    cluster: ClusterConfig

    @classmethod
    def of(cls, request: Request, config: Path) -> "Case":
        """Return the case of a point to predict. Raises `PointError` if it cannot run."""
        if request.invalid_because:
            raise PointError(f"{request.where}: {request.invalid_because}")
        point, catalogue = request.point, Catalogue(config)
        job = job_of(point, catalogue, request.stack or OF_ENGINE.get(point.engine))
        serving = serving_of(point) if point.task == "inference" else None
        return cls(run_id(point), job, serving, catalogue.cluster(point.cluster.name))

    @property
    def steps_per_mtoken(self) -> float:
        """Steps or batches of inference for a million tokens, trained or generated."""
        job, serving = self.job, self.serving
        trained = job.global_batch_size * job.sequence_length
        tokens = trained if serving is None else job.layout.dp * serving.batch_size * serving.output_tokens
        return TOKENS_PRICED / tokens

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the job."""
        return -(-self.job.num_gpus // self.cluster.gpus_per_node)

    def on(self, cluster: ClusterConfig, config: Path) -> "Case":
        """Return the case on a changed cluster, with its GPUs and links."""
        catalogue = Catalogue(config)
        gpu = catalogue.gpu_of(cluster)
        assert gpu is not None, "a case has GPUs"
        fabric = fabric_of(cluster, gpu, config)
        fabric = fabric if self.job.software.reduces_in_switches else fabric.without_reduction()
        return replace(self, job=replace(self.job, gpu=gpu, fabric=fabric), cluster=cluster)

    def with_job(self, **changes: object) -> "Case":
        """Return the case with attributes of its job changed."""
        return replace(self, job=replace(self.job, **changes))  # type: ignore[arg-type]

    def predict(self, config: Path, with_power: bool = True) -> Prediction:
        """Return the prediction of the case, by default with power and heat."""
        return predict_job(self.job, self.serving, config, self.cluster, with_power)


@dataclass(frozen=True)
class Quantity:
    """A quantity of a step, or of a batch of inference.

    Attributes:
        name: Name, which ends in the unit.
        unit: Unit of the quantity and of its changes.
        what: Description.
    """

    name: str
    unit: str
    what: str


QUANTITIES = (
    Quantity("step_time_s", "s", "a step, or a batch of inference"),
    Quantity("gpu_power_w", "W", "mean of a GPU over the step"),
    Quantity("node_power_w", "W", "mean of a node at the plug"),
    Quantity("gpu_temp_max_c", "degC", "hottest die"),
    Quantity("node_energy_j", "J", "all nodes at the plug, for a step"),
    Quantity("cost", "currency", "GPU hours and energy of a step, at the prices given"),
)
"""Quantities of the tables, in order; those without a value are left out."""


def quantities(case: Case, prediction: Prediction, prices: Prices) -> dict[str, float]:
    """Return the quantities of a predicted case by name; NaN if unknown."""
    step_s, power = prediction.step_time_s, prediction.power
    energy_j = power.node_power_w * case.num_nodes * step_s
    return {
        "step_time_s": step_s,
        "gpu_power_w": power.gpu_power_w,
        "node_power_w": power.node_power_w,
        "gpu_temp_max_c": power.gpu_temp_max_c,
        "node_energy_j": energy_j,
        "cost": prices.cost(step_s * case.job.num_gpus, energy_j),
    }
