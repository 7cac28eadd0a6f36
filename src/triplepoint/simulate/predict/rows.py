"""One row of a table of training runs, and the job it means."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Literal

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout
from triplepoint.simulate.inference import Serving
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict import spelling
from triplepoint.simulate.predict.architecture import adapt, build_model, is_of, read_shape
from triplepoint.simulate.predict.cells import Cells, count, degree, need
from triplepoint.simulate.predict.known import find_known
from triplepoint.simulate.predict.machines import usual_fabric
from triplepoint.simulate.predict.serving import read_serving
from triplepoint.simulate.predict.spelling import UnreadableError, is_blank, shown
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.timeline.schedule import MOST_PASSES
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
        job, open_choices = _read_job(cells, config)
        serving = read_serving(cells, job)
    except UnreadableError as error:
        return Row(name, None, Status.INVALID, str(error), cells=cells)
    except _UnsupportedError as error:
        return Row(name, None, "unsupported", str(error), cells=cells)
    return Row(name, job, open_choices=open_choices, cells=cells, serving=serving)


def _read_job(cells: Cells, config: Path) -> tuple[Job, frozenset[str]]:
    gpu = _read_gpu(cells.get("gpu", ""), config)
    model = _read_model(cells, config)
    stack = find_stack(cells.get("framework", ""), config)
    layout, shards = _read_layout(cells, model, stack.expert_parallel)
    trained = spelling.read_trained(cells.get("trainable", ""), cells.get("notes", ""))
    if trained.is_quantised:
        raise _UnsupportedError("a frozen base in 4 bits (QLoRA) is not simulated; LoRA on 16 bits is")
    recompute, recompute_layers = spelling.read_recompute(cells.get("recompute", ""))
    micro_batch = count(cells, "mbs")
    global_batch = need(cells, "gbs")
    open_choices = {"recompute"} if recompute is None else set()
    if micro_batch is None:
        open_choices.add("micro_batch")
        micro_batch = 1
    _check_batch(global_batch, micro_batch, layout)
    num_gpus, said = layout.tp * layout.pp * layout.cp * layout.dp, shards.overlap
    fabric = usual_fabric(gpu, num_gpus, spelling.read_network(cells.get("interconnect", "")), config)
    job = Job(
        model=model,
        layout=layout,
        micro_batch_size=micro_batch,
        global_batch_size=global_batch,
        sequence_length=_sequence_length(cells, model),
        gpu=gpu,
        fabric=fabric,
        precision=_precision(cells, gpu),
        recompute=recompute or "none",
        recompute_layers=recompute_layers,
        overlap=frozenset(kind for kind in stack.overlap if said is None or kind == "tp" or kind in said),
        shard_size=_shard_size(shards, layout, fabric.gpus_per_node),
        keeps_gathered=shards.keeps_gathered,
        expert_tp=count(cells, "etp"),
        trainable=trained.what,
        lora_rank=trained.rank,
        stack=" ".join(cells.get("framework", "").split())[:80],
    )
    return job, frozenset(open_choices)


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


def _read_layout(cells: Cells, model: ModelConfig, expert_parallel: int | None) -> tuple[Layout, spelling.Shards]:
    tp, pp, cp, vp, ep = (degree(cells, column) for column in ("tp", "pp", "cp", "vp", "ep"))
    dp = _data_parallel(cells, tp * pp * cp)
    if ep == 1 and model.moe and expert_parallel:
        ep = gcd(model.moe.num_experts, dp * cp, expert_parallel)
    shards = spelling.read_shards(cells.get("fsdp", ""))
    layout = Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        vp=vp,
        sequence_parallel=spelling.read_sequence_parallel(cells.get("seq_parallel", ""), tp),
        data_parallel_sharding=shards.sharding,
        schedule=None if pp == 1 else "interleaved_1f1b" if vp > 1 else "1f1b",
        pipeline_layers=spelling.read_stages(cells.get("pipeline_layers", ""), pp * vp, model.num_layers),
    )
    _check_layout(layout, model, _sequence_length(cells, model))
    if shards.is_offloaded:
        raise _UnsupportedError("offload to the host's memory is not simulated")
    return layout, shards


def _shard_size(shards: spelling.Shards, layout: Layout, gpus_per_node: int) -> int | None:
    """Return how many data parallel ranks share out: as stated, with hybrid sharding those of a node; None for all."""
    of_a_node = gcd(layout.dp, max(1, gpus_per_node // (layout.tp * layout.cp)))
    size = shards.shard_size or (of_a_node if shards.is_hybrid else layout.dp)
    if size >= layout.dp:
        return None
    if layout.dp % size:
        raise UnreadableError(f"fsdp shards over {size} ranks, which do not divide dp {layout.dp}")
    return size


def _data_parallel(cells: Cells, others: int) -> int:
    """Return the data parallel degree: as stated, or what is left of the GPUs."""
    num_gpus, stated = count(cells, "n_gpus"), count(cells, "dp")
    if num_gpus is None:
        num_gpus = others * (stated or 1)
    if num_gpus > _MAX_GPUS:
        raise _UnsupportedError(f"n_gpus is {num_gpus}, at most {_MAX_GPUS} are simulated")
    if stated is not None and others * stated != num_gpus:
        raise UnreadableError(f"tp*pp*cp*dp = {others * stated}, n_gpus is {num_gpus}; they must be the same")
    if num_gpus % others:
        raise UnreadableError(f"n_gpus {num_gpus} is not divisible by tp*pp*cp = {others}")
    return num_gpus // others


def _check_layout(layout: Layout, model: ModelConfig, seq: int) -> None:
    if model.num_attention_heads % layout.tp:
        raise UnreadableError(f"heads {model.num_attention_heads} is not divisible by tp {layout.tp}")
    num_chunks = layout.pp * layout.vp
    if num_chunks > model.num_layers:
        raise UnreadableError(f"pp*vp = {num_chunks} stages for {model.num_layers} layers; at least one layer each")
    if layout.vp > 1 and layout.pp == 1:
        raise UnreadableError(f"vp is {layout.vp} and pp is 1; virtual stages need a pipeline")
    if layout.cp > 1 and seq % (2 * layout.cp):
        raise UnreadableError(f"seq {seq} is not divisible by 2*cp = {2 * layout.cp}")
    _check_experts(layout, model)


def _check_experts(layout: Layout, model: ModelConfig) -> None:
    num_experts = model.moe.num_experts if model.moe else 0
    if layout.ep > 1 and (not num_experts or num_experts % layout.ep):
        raise UnreadableError(f"experts {num_experts} is not divisible by ep {layout.ep}")
    num_ranks = layout.dp * layout.cp * layout.tp
    if layout.ep > num_ranks:
        raise UnreadableError(f"ep {layout.ep} is more than the {num_ranks} ranks of a stage")


def _check_batch(global_batch: int, micro_batch: int, layout: Layout) -> None:
    if global_batch % (micro_batch * layout.dp):
        raise UnreadableError(f"gbs {global_batch} is not divisible by mbs*dp = {micro_batch}*{layout.dp}")
    passes = global_batch // (micro_batch * layout.dp) * layout.pp * layout.vp
    if passes > MOST_PASSES:
        raise _UnsupportedError(f"micro-batches*pp*vp = {passes} passes, at most {MOST_PASSES} are simulated")


def _precision(cells: Cells, gpu: GpuConfig) -> Literal["fp32", "bf16", "fp16", "fp8"]:
    text = cells.get("precision", "")
    if re.search(r"fp4|int8|mxfp6", text.lower()):
        raise _UnsupportedError(f"precision {shown(text)} is not simulated; bf16, fp16, fp8 and fp32 are")
    found = spelling.read_precision(text)
    if found == "fp8" and gpu.peak_fp8_flops is None:
        raise UnreadableError(f"precision is fp8, which {gpu.name} does not have")
    return found


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
