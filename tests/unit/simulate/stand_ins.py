"""Small simulated jobs whose times are stand-ins: round numbers, not a model's."""

from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.fabric import Fabric, Level
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.timeline.durations import Durations, Pass
from triplepoint.simulate.work.training import stage_work

CONFIG = Path(__file__).parents[3] / "config"


def time_of(operation: Operation) -> float:
    """Return a time: 500 TFLOP/s, 2 TB/s and 3 us a kernel, 200 GB/s and 10 us a collective."""
    if isinstance(operation, Kernel):
        return max(operation.flops / 5e14, operation.num_bytes / 2e12) + 3e-6
    return 10e-6 + operation.num_bytes / 2e11


def _model(catalogue: Catalogue, model: str | ModelConfig) -> ModelConfig:
    return catalogue.model(model).model_copy(update={"num_layers": 8}) if isinstance(model, str) else model


def simulated(
    layout: Layout,
    *,
    model: str | ModelConfig = "llama3-70b",
    gpu: str = "h200",
    slow: tuple[float, ...] = (1.0,),
    **changes: Any,
) -> Simulated:
    """Return a job of 4 micro-batches, of a named model 8 layers; each factor in `slow` is a class of replicas."""
    catalogue = Catalogue(CONFIG)
    world = layout.tp * layout.cp * layout.dp * layout.pp
    fields: dict[str, Any] = {
        "model": _model(catalogue, model),
        "layout": layout,
        "micro_batch_size": 1,
        "global_batch_size": 4 * layout.dp,
        "sequence_length": 2048,
        "gpu": catalogue.gpu(gpu),
        "software": find_stack("", CONFIG),
        "fabric": Fabric(
            (
                Level("nvlink", 8, 450e9, 1e-6, counters="nvlink"),
                Level("rail", max(world, 9), 50e9, 1e-5, is_network=True),
            )
        ),
    }
    job = Job(**(fields | changes))
    stages = stage_work(job)
    factors = np.array(slow)

    def price(operations: tuple[Operation, ...]) -> tuple[np.ndarray, np.ndarray]:
        compute = sum(time_of(op) * op.count for op in operations if isinstance(op, Kernel)) * factors
        communications = [op for op in operations if isinstance(op, Communication)]
        overlapped = sum(time_of(op) * op.count for op in communications if op.is_overlapped)
        alone = sum(time_of(op) * op.count for op in communications if not op.is_overlapped)
        return compute, alone + np.maximum(overlapped - compute, 0.0)

    def passes(name: str) -> Pass:
        priced = np.array([[price(getattr(chunk, name)) for chunk in stage.chunks] for stage in stages])
        return Pass(priced[:, :, 0], priced[:, :, 1])

    def synced(is_overlapped: bool, is_gather: bool | None = None) -> np.ndarray:
        return np.array(
            [
                sum(
                    time_of(op) * op.count
                    for op in stage.gradient_sync
                    if op.is_overlapped == is_overlapped and is_gather in (None, op.kind == "all_gather")
                )
                for stage in stages
            ]
        )

    def by_chunk(times: np.ndarray) -> np.ndarray:
        return np.repeat(times[:, None] / layout.vp, layout.vp, axis=1)

    optimizer = np.array([price(stage.optimizer) for stage in stages])
    send = np.array([20e-6 if layout.pp > 1 else 0.0 for _ in stages])
    durations = Durations(
        forward=passes("forward"),
        backward_input=passes("backward_input"),
        backward_weight=passes("backward_weight"),
        optimizer=Pass(optimizer[:, 0], optimizer[:, 1]),
        send=send,
        sync_overlapped=by_chunk(synced(True, False)),
        sync_exposed=synced(False),
        gather_overlapped=by_chunk(synced(True, True)),
        replicas=np.full(len(slow), layout.dp // len(slow)),
        is_send_blocking=layout.vp == 1,
    )
    return Simulated(job, stages, time_of, durations, np.arange(layout.dp) % len(slow), (10**9,) * layout.pp)


def representatives(job: Simulated) -> list[int]:
    """Return one rank of every stage and class: all that differ."""
    layout = job.job.layout
    firsts = np.unique(job.class_of_replica, return_index=True)[1] * layout.tp * layout.cp
    return [
        stage * layout.tp * layout.cp * layout.dp + first for stage in range(layout.pp) for first in firsts.tolist()
    ]
