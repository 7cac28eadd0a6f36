"""One row of a table of training runs, and the job it means."""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Literal

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.fold import fold
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.mesh import RankMesh
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout, Point, PointCluster, Precision, Sharding, usual_schedule
from triplepoint.config.rules import refusal
from triplepoint.config.task import TARGETS, Inference, Lora
from triplepoint.simulate.inference import Serving
from triplepoint.simulate.job import Job
from triplepoint.simulate.limits import check_order
from triplepoint.simulate.predict import spelling
from triplepoint.simulate.predict.architecture import adapt, build_model, is_of, read_shape
from triplepoint.simulate.predict.cells import Cells, count, degree, need
from triplepoint.simulate.predict.known import find_known
from triplepoint.simulate.predict.machines import usual_fabric
from triplepoint.simulate.predict.serving import read_output_tokens
from triplepoint.simulate.predict.spelling import UnreadableError, is_blank, shown
from triplepoint.simulate.stacks import Stack, find_stack
from triplepoint.status import Status

COLUMNS = (
    # fmt: off
    "id",
    "model",
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "experts",
    "topk",
    "moe_ffn",
    "params_B",
    "seq",
    "gpu",
    "n_gpus",
    "tp",
    "pp",
    "vp",
    "pipeline_layers",
    "cp",
    "ep",
    "etp",
    "dp",
    "fsdp",
    "mbs",
    "gbs",
    "precision",
    "recompute",
    "seq_parallel",
    "framework",
    "interconnect",
    "trainable",
    "notes",
    "task",
    "output_tokens",
    # fmt: on
)
"""Columns that are read; any other is passed over. Needed are gpu and gbs, and either a model that is known by name or
hidden, layers, heads and seq."""

_MAX_GPUS = 1_000_000
_MAX_LAYERS = 10_000
_MAX_EXPERTS = 100_000
"""Larger ones are beyond anything trained, and would take minutes."""


@dataclass(frozen=True)
class Row:
    """What a row means.

    Attributes:
        id: Its key in the output.
        job: The job, None where there is none.
        serving: What is asked of it where it is inference.
        status: Why there is none: `invalid` for a row that contradicts itself or cannot be read, `unsupported` for one
            that can, but is of something not simulated.
        reason: One line to the status.
        open_choices: What the row left open, to be settled by what fits in memory: micro_batch, recompute.
        cells: The row as it stood.
    """

    id: str
    job: Job | None = None
    status: Literal[Status.INVALID, "unsupported", ""] = ""
    reason: str = ""
    open_choices: frozenset[str] = frozenset()
    cells: Cells = field(default_factory=dict)
    serving: Serving | None = None


class _UnsupportedError(Exception):
    """A row that can be read, of something that is not simulated."""


def read_row(cells: Cells, number: int, config: Path) -> Row:
    """Return what a row means; a row that cannot be read has a status instead of a job.

    Args:
        cells: Text by column.
        number: Of the row, from 1; its id where the table has none. Line breaks in an id become spaces.
        config: Folder of the configuration.
    """
    name = " ".join(cells.get("id", "").splitlines()).strip() or str(number)
    try:
        return _read(name, cells, config)
    except UnreadableError as error:
        return Row(name, None, Status.INVALID, str(error), cells=cells)
    except _UnsupportedError as error:
        return Row(name, None, "unsupported", str(error), cells=cells)


def _read(name: str, cells: Cells, config: Path) -> Row:
    gpu = _read_gpu(cells.get("gpu", ""), config)
    stack = find_stack(cells.get("framework", ""), config)
    model = _read_model(cells, config)
    shards = spelling.read_shards(cells.get("fsdp", ""))
    if shards.is_offloaded:
        raise _UnsupportedError("offload to the host's memory is not simulated")
    point = _read_point(cells, model, gpu, shards, stack)
    _check(point, gpu)
    network = spelling.read_network(cells.get("interconnect", ""))
    fabric = usual_fabric(gpu, point.num_gpus, network, config)
    job = replace(
        Job.of(point, gpu, fabric, " ".join(cells.get("framework", "").split())[:80], config),
        shard_size=_shard_size(shards, point.layout, fabric.gpus_per_node),
        keeps_gathered=shards.keeps_gathered,
    )
    columns = {"recompute": "recompute", "micro_batch": "mbs"}
    open_choices = frozenset(choice for choice, column in columns.items() if is_blank(cells.get(column, "")))
    serving = None
    if point.inference:
        tokens = point.inference
        serving = Serving(tokens.prompt_tokens, tokens.output_tokens, job.global_batch_size // job.layout.dp)
    return Row(name, job, open_choices=open_choices, cells=cells, serving=serving)


def _read_point(cells: Cells, model: ModelConfig, gpu: GpuConfig, shards: spelling.Shards, stack: Stack) -> Point:
    """Return the point a row means; what it leaves open is 1 and none."""
    layout, num_gpus = _read_layout(cells, model, shards.sharding, stack.expert_parallel)
    recompute, recompute_layers = spelling.read_recompute(cells.get("recompute", ""))
    sequence_length, output_tokens = _sequence_length(cells, model), read_output_tokens(cells)
    asked = Inference(prompt_tokens=sequence_length, output_tokens=output_tokens) if output_tokens else None
    stated = shards.overlap
    return Point(
        model=model,
        cluster=PointCluster(name="published", device="cuda", gpu=gpu.name, gpus_per_node=1),
        engine="simulated",
        num_gpus=num_gpus,
        layout=layout,
        micro_batch_size=count(cells, "mbs") or 1,
        global_batch_size=need(cells, "gbs"),
        sequence_length=sequence_length,
        recompute=recompute or "none",
        recompute_layers=recompute_layers,
        overlap=tuple(kind for kind in stack.overlap if stated is None or kind == "tp" or kind in stated),
        precision=_precision(cells),
        lora=_read_lora(cells),
        task="inference" if asked else "pretrain",
        inference=asked,
    )


def _read_lora(cells: Cells) -> Lora | None:
    trained = spelling.read_trained(cells.get("trainable", ""), cells.get("notes", ""))
    if trained.is_quantised:
        raise _UnsupportedError("a frozen base in 4 bits (QLoRA) is not simulated; LoRA on 16 bits is")
    return Lora(rank=trained.rank, alpha=32.0, targets=TARGETS) if trained.what == "lora" else None


def _check(point: Point, gpu: GpuConfig) -> None:
    """Hold a row against the rule book; stages it does not describe are as even as can be."""
    layout, layers = point.layout, point.model.num_layers
    if not layout.pipeline_layers and layers >= layout.pp * layout.vp:
        layout = layout.model_copy(update={"pipeline_layers": layout.stage_layers(layers)})
    stated = point.model_copy(update={"layout": layout})
    if reason := refusal(fold(stated) if point.inference else stated, gpu=gpu):
        raise UnreadableError(reason)
    if reason := check_order(point):
        raise _UnsupportedError(reason)


def _read_model(cells: Cells, config: Path) -> ModelConfig:
    """Return the model: known by name, with what the row says in place of what is known; else of the columns alone."""
    shape, known = read_shape(cells), find_known(cells.get("model", ""), config)
    for name, value, most in (("layers", shape.layers, _MAX_LAYERS), ("experts", shape.experts, _MAX_EXPERTS)):
        if value and value > most:
            raise _UnsupportedError(f"{name} is {value}, at most {most} are simulated")
    if known and known.unsupported and shape.missing:
        raise _UnsupportedError(f"{shown(shape.name)} has {known.unsupported}, which are not simulated")
    if known and known.model and is_of(shape, known.model):
        return adapt(shape, known.model)
    if shape.missing:
        blank = ", ".join(shape.missing)
        raise _UnsupportedError(f"{blank} blank: the architecture of {shown(shape.name)} is needed to simulate it")
    need(cells, "seq")
    return build_model(shape)


def _sequence_length(cells: Cells, model: ModelConfig) -> int:
    """Return the tokens of a sequence: as stated, else what a model known by name was trained with."""
    return count(cells, "seq") or (model.sequence_length if model.sequence_length > 1 else need(cells, "seq"))


def _read_layout(
    cells: Cells, model: ModelConfig, sharding: Sharding, expert_parallel: int | None
) -> tuple[Layout, int]:
    """Return the layout and the number of GPUs, which follows from it where it is not stated."""
    tp, pp, cp, vp, ep = (degree(cells, column) for column in ("tp", "pp", "cp", "vp", "ep"))
    stated = count(cells, "dp")
    num_gpus = count(cells, "n_gpus") or tp * pp * cp * (stated or 1)
    if num_gpus > _MAX_GPUS:
        raise _UnsupportedError(f"n_gpus is {num_gpus}, at most {_MAX_GPUS} are simulated")
    dp = stated or max(1, num_gpus // (tp * pp * cp))
    if ep == 1 and model.moe and expert_parallel:
        ep = gcd(model.moe.num_experts, dp, expert_parallel)
    layout = Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        etp=count(cells, "etp"),
        vp=vp,
        sequence_parallel=spelling.read_sequence_parallel(cells.get("seq_parallel", ""), tp),
        data_parallel_sharding=sharding,
        schedule=usual_schedule(pp, vp),
        pipeline_layers=spelling.read_stages(cells.get("pipeline_layers", "")),
    )
    return layout, num_gpus


def _shard_size(shards: spelling.Shards, layout: Layout, gpus_per_node: int) -> int | None:
    """Return how many data parallel ranks share out: as stated, with hybrid sharding those of a node; None for all."""
    of_a_node = gcd(layout.dp, max(1, gpus_per_node // RankMesh(layout).ranks_per_replica))
    size = shards.shard_size or (of_a_node if shards.is_hybrid else layout.dp)
    if size >= layout.dp:
        return None
    if layout.dp % size:
        raise UnreadableError(f"fsdp shards over {size} ranks, which do not divide dp {layout.dp}")
    return size


def _precision(cells: Cells) -> Precision:
    text = cells.get("precision", "")
    if re.search(r"fp4|int8|mxfp6", text.lower()):
        raise _UnsupportedError(f"precision {shown(text)} is not simulated; bf16, fp16, fp8 and fp32 are")
    return spelling.read_precision(text)


def _read_gpu(text: str, config: Path) -> GpuConfig:
    """Return the GPU a cell names; a memory size in the name is followed."""
    if is_blank(text):
        raise UnreadableError("gpu is blank, expected a GPU such as H100-SXM-80GB")
    known = _gpus(config)
    low = text.lower()
    names = [name for name in known if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![0-9])", low)]
    if not names:
        raise _UnsupportedError(f"gpu {shown(text)} is not known; known are {', '.join(known)}")
    gpu = known[max(names, key=len)]
    size = spelling.read_memory_size(text)
    stock = gpu.memory_capacity.value
    if size and not 0.9 < size * 1e9 / stock < 1.1 and gpu.gpus_per_package == 1:
        capacity = gpu.memory_capacity.model_copy(update={"value": size * stock / _nominal(stock)})
        return gpu.model_copy(update={"memory_capacity": capacity})
    return gpu


def _nominal(num_bytes: float) -> float:
    """Return the size as sold, in GB, of what a driver shows: 80 for 85.9e9 bytes."""
    return round(num_bytes / 2**30)


@lru_cache(maxsize=4)
def _gpus(config: Path) -> dict[str, GpuConfig]:
    catalogue = Catalogue(config)
    return {path.stem: catalogue.gpu(path.stem) for path in sorted((config / "gpus").glob("*.yaml"))}
