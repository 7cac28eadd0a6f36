"""What the software of a predicted job does: the stack's usual ways, and what the job says in their place."""

from dataclasses import dataclass
from pathlib import Path

from triplepoint.simulate.job import Job
from triplepoint.simulate.kernels.parameters import read_kernels


@dataclass(frozen=True)
class SoftwareUse:
    """Columns of a prediction on software; empty where a way has no effect in the job.

    Attributes:
        software: Name of the stack in `config/calibration/stacks.yaml`.
        attention: Kernels of attention.
        launch: How the host starts kernels.
        recompute_modules: What selective recomputation repeats.
        fp8_recipe: What scales of fp8 numbers are of.
        optimizer_moments: Number format of Adam's moments.
        overlap: Communication overlapped with computation.
        dispatch: How tokens get to experts on other ranks.
        dispatch_precision: Number format of tokens on their way there.
        token_nodes: Nodes that the experts of a token are on, at most.
    """

    software: str = ""
    attention: str = ""
    launch: str = ""
    recompute_modules: str = ""
    fp8_recipe: str = ""
    optimizer_moments: str = ""
    overlap: str = ""
    dispatch: str = ""
    dispatch_precision: str = ""
    token_nodes: int | str = ""


def software_use(job: Job, config: Path) -> SoftwareUse:
    """Return what the software of a job does.

    Args:
        job: The job.
        config: Folder of the configuration.
    """
    usual_attention = next(iter(read_kernels(job.gpu, config).attention))
    stack, is_sent = job.software, job.model.moe is not None and job.layout.ep > 1
    is_fully_sharded = job.layout.data_parallel_sharding == "optim_grads_params"
    return SoftwareUse(
        software=stack.name,
        attention=stack.attention or usual_attention,
        launch=stack.launch,
        recompute_modules=" ".join(stack.recompute_modules) if job.recompute == "selective" else "",
        fp8_recipe=stack.fp8_recipe if job.precision == "fp8" else "",
        optimizer_moments="bf16" if stack.has_16bit_state and is_fully_sharded else stack.optimizer_moments,
        overlap=" ".join(sorted(job.overlap)),
        dispatch=stack.dispatch if is_sent else "",
        dispatch_precision=stack.dispatch_precision if is_sent else "",
        token_nodes=(stack.token_nodes or "") if is_sent else "",
    )
