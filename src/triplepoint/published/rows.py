"""One row of a published table, and the job it means."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.choices import ModelChoices
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.gpu_names import AmbiguousGpuError, UnknownGpuError, check_beside, read_gpu
from triplepoint.config.mesh import RankMesh
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import (
    Layout,
    Overlap,
    PipelineEnd,
    Point,
    PointCluster,
    Sharding,
    lighter_ends,
    usual_schedule,
)
from triplepoint.config.rules import fold, refusal, without_effect
from triplepoint.config.task import Inference
from triplepoint.errors import shown
from triplepoint.published import software, words
from triplepoint.published.architecture import Unsupported, adapt, build_model, find_model, is_of, read_shape
from triplepoint.published.fabric import usual_fabric, usual_words
from triplepoint.published.network import StatedNetwork, read_network
from triplepoint.published.unstated import may_fit_with, unstated
from triplepoint.published.words import Cells, UnreadableError, UnsupportedError, count, is_blank, need
from triplepoint.simulate.inference import Serving, serving_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.limits import check_offload, check_order
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.predict.prediction import Prediction, predict_job
from triplepoint.simulate.stacks import Stack, check_one, find_stack, unknown_stack
from triplepoint.status import PredictionStatus

COLUMNS = (
    *("id", "model", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "moe_ffn", "params_B"),
    *("seq", "gpu", "n_gpus", "tp", "pp", "vp", "pipeline_layers", "cp", "ep", "etp", "dp", "fsdp", "mbs", "gbs"),
    *("precision", "recompute", "seq_parallel", "framework", "interconnect", "trainable", "notes", "task"),
    "output_tokens",
    *("num_mtp_layers", "capacity_factor", "offload"),
    *software.COLUMNS,
)
"""Columns that are read; any other is passed over. Needed are gpu and gbs, and either a model that is known by name or
hidden, layers, heads and seq."""

_CARD = re.compile("pci-?e|pci express", re.IGNORECASE)
_MODULE = re.compile(r"nvlink|sxm|hgx|dgx|gen|pci-?e\s*[3-6]|pci express\s*[3-6]", re.IGNORECASE)
"""Words of cards and of modules. A generation of PCIe says how a GPU is joined to its host, module or card."""

_GPUS_OF_HGX = 8
"""GPUs of a node of NVIDIA's modules: a name that may be a module or a card is a module where so many make the job."""

_MICRO_BATCHES = (4, 2, 1)
"""Sizes tried where a row does not state one: beyond 4 sequences published layouts gain nothing."""


@dataclass(frozen=True)
class Row:
    """A row as it was understood.

    Attributes:
        id: Its key in the output.
        job: The job, None where there is none.
        serving: What is asked of the model where it is inference.
        status: Why there is no job: `invalid` for a row that contradicts itself or cannot be read, `unsupported` for
            one of something that is not simulated.
        reason: One line to the status.
        open_choices: What the row left open, to be settled by what fits in memory: micro_batch, recompute.
        unstated: Columns that do not say what memory depends on; see `published.unstated`.
        notes: What was taken for what, where words could mean something else or say nothing.
    """

    id: str
    job: Job | None = None
    status: Literal[PredictionStatus.INVALID, PredictionStatus.UNSUPPORTED] | None = None
    reason: str = ""
    open_choices: frozenset[str] = frozenset()
    serving: Serving | None = None
    unstated: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def predict(self, config: Path, with_power: bool = True) -> Prediction:
        """Return the prediction of the row, power and heat on request; whatever is wrong with it is its status."""
        if self.job is None:
            assert self.status
            return Prediction(self.status, self.reason)
        try:
            found = predict_job(self.job if self.serving else settle(self), self.serving, config, with_power=with_power)
        except (ArithmeticError, ValueError, MemoryError) as error:
            # Numbers nobody thought of; the other rows must not suffer.
            line = " ".join(str(error).split())[:200]
            return Prediction(PredictionStatus.UNSUPPORTED, f"cannot be simulated: {type(error).__name__} {line}")
        if found.status == PredictionStatus.OOM and (with_it := self._may_fit_with()):
            reason = f"{found.reason}; may fit with {with_it}, which the row does not say it lacks"
            found = replace(found, status=PredictionStatus.UNDECIDED, reason=reason)
        return replace(found, reason="; ".join(filter(None, (found.reason, *self.notes))))

    def _may_fit_with(self) -> str:
        return "" if self.serving else may_fit_with(settle(self), self.unstated)


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
        return Row(name, None, PredictionStatus.INVALID, str(error))
    except ValidationError as error:
        first = error.errors()[0]
        return Row(name, None, PredictionStatus.INVALID, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    except UnsupportedError as error:
        return Row(name, None, PredictionStatus.UNSUPPORTED, str(error))


def settle(row: Row) -> Job:
    """Return the job of a row with its open choices made as one would run it: by what fits in memory.

    Recomputation: the least that fits. Micro-batch: the largest of 1, 2, 4 that fits with it, 1 with a pipeline.
    """
    assert row.job is not None
    best = row.job
    for recompute in ("none", "selective", "full") if "recompute" in row.open_choices else (row.job.recompute,):
        for size in _micro_batches(row):
            best = replace(row.job, recompute=recompute, micro_batch_size=size)
            if not row.open_choices or peak_memory(best).total <= best.gpu.memory_capacity.value:
                return best
    return best


def _micro_batches(row: Row) -> list[int]:
    assert row.job is not None
    if "micro_batch" not in row.open_choices or row.job.layout.pp > 1:
        return [row.job.micro_batch_size]
    each = row.job.global_batch_size // row.job.layout.dp
    return [size for size in _MICRO_BATCHES if each % size == 0]


def _read(name: str, cells: Cells, config: Path) -> Row:
    gpu, other_gpus = _read_gpu(cells, config)
    if line := check_one(cells.get("framework", ""), config):
        raise UnreadableError(f"framework {line}")
    stack = find_stack(cells.get("framework", ""), config)
    model = _read_model(cells, config)
    shards = words.read_shards(cells.get("fsdp", ""))
    point = _read_point(cells, model, gpu, shards, stack)
    _check(point, gpu)
    if reason := next(iter(without_effect(point, _stated(cells, point)).values()), None):
        raise UnreadableError(reason)
    network = read_network(cells.get("interconnect", ""), cells.get("gpu", ""))
    fabric = usual_fabric(gpu, point.num_gpus, network, config)
    job = replace(
        Job.of(point, gpu, fabric, " ".join(cells.get("framework", "").split())[:80], config),
        shard_size=_shard_size(shards, point.layout, fabric.gpus_per_node),
        keeps_gathered=shards.keeps_gathered,
    )
    if shards.reshards:
        job = replace(job, software=job.software.model_copy(update={"gathers_once": ()}))
    columns = {"recompute": "recompute", "micro_batch": "mbs"}
    open_choices = frozenset(choice for choice, column in columns.items() if is_blank(cells.get(column, "")))
    serving = serving_of(point) if point.inference else None
    notes = _notes(cells, gpu, other_gpus, network, config)
    if len(fabric.levels) > len(usual_fabric(gpu, 1, StatedNetwork(), config).levels):
        notes += _assumed(gpu, network)
    return Row(name, job, open_choices=open_choices, serving=serving, unstated=unstated(cells), notes=notes)


def _stated(cells: Cells, point: Point) -> dict[str, object]:
    """Return the settings a row states, by name, that need something else to have an effect."""
    stated = {name: getattr(point, name) for name in software.COLUMNS if not is_blank(cells.get(name, ""))}
    if point.recompute_modules:
        stated["recompute_modules"] = point.recompute_modules
    etp = count(cells, "etp")
    numbers = {
        # 1 is what there is without experts, or of no output.
        "etp": etp if etp != 1 else None,
        "output_tokens": words.read_count("output_tokens", cells.get("output_tokens", "")),
        "capacity_factor": words.read_number("capacity_factor", cells.get("capacity_factor", "")),
    }
    return stated | {name: value for name, value in numbers.items() if value}


def _notes(
    cells: Cells, gpu: GpuConfig, other_gpus: tuple[str, ...], network: StatedNetwork, config: Path
) -> tuple[str, ...]:
    """Return what was taken for what, where words of a row could mean something else or say nothing."""
    framework = cells.get("framework", "")
    said = (
        f"gpu {shown(cells.get('gpu', ''))} is taken as {gpu.name}, could be {' or '.join(other_gpus)}"
        if other_gpus
        else "",
        "" if is_blank(framework) else unknown_stack(framework, config),
        "the rate of the interconnect is taken as that of a node" if network.is_of_unknown else "",
        f"interconnect: not read: {', '.join(network.unread)}"[:120] if network.unread else "",
    )
    return tuple(filter(None, said))


def _assumed(gpu: GpuConfig, network: StatedNetwork) -> tuple[str, ...]:
    """Return what is assumed of a network between nodes of which something is said, but not all."""
    counted = network.num_nics or network.nics_per_gpu
    if network.is_silent and not counted:
        return (f"interconnect states no rate: {usual_words(gpu)} of a node is assumed, usual of {gpu.name}",)
    if counted and not (network.bandwidth or network.nic_bandwidth):
        each = usual_words(gpu).split("x")[1]
        return (f"interconnect states no rate: adapters of {each} are assumed, usual of {gpu.name}",)
    if network.nic_bandwidth and not counted:
        number = usual_words(gpu).split("x")[0]
        return (f"interconnect states no adapters: {number} of a usual node of {gpu.name} are assumed",)
    return ()


def _read_point(cells: Cells, model: ModelConfig, gpu: GpuConfig, shards: words.Shards, stack: Stack) -> Point:
    """Return the point a row means; what it leaves open is 1 and none."""
    layout, num_gpus = _read_layout(cells, model, shards.sharding, stack)
    recompute, recompute_layers = words.read_recompute(cells.get("recompute", ""))
    # Where a row does not state the sequence, that which a model known by name was trained with.
    sequence_length, output_tokens = count(cells, "seq") or model.sequence_length, words.read_output_tokens(cells)
    inference = Inference(prompt_tokens=sequence_length, output_tokens=output_tokens) if output_tokens else None
    batch = need(cells, "gbs")
    return Point(
        model=model,
        cluster=PointCluster(name="published", device="cuda", gpu=gpu.name, gpus_per_node=1),
        engine="simulated",
        num_gpus=num_gpus,
        layout=layout,
        micro_batch_size=max(1, batch // layout.dp) if inference else count(cells, "mbs") or 1,
        global_batch_size=batch,
        sequence_length=sequence_length,
        recompute=recompute or "none",
        recompute_layers=recompute_layers,
        overlap=_overlap(stack, shards.overlap, software.read_overlap(cells, stack.overlap)),
        precision=words.read_precision(cells.get("precision", ""), "bf16" if gpu.has_bf16 else "fp16"),
        lora=words.read_lora(cells.get("trainable", ""), cells.get("notes", ""), stack.lora_targets),
        task="inference" if inference else "pretrain",
        inference=inference,
        offload=software.read_offload(cells),
        **software.read_software(cells),
    )


def _overlap(stack: Stack, of_shards: words.Overlap | None, stated: frozenset[Overlap] | None) -> tuple[Overlap, ...]:
    """Return what is overlapped: as the row states, or says of its shards, else as the stack does."""
    if stated is not None:
        return tuple(kind for kind in get_args(Overlap) if kind in stated)
    return tuple(kind for kind in stack.overlap if of_shards is None or kind in ("tp", "ep") or kind in of_shards)


def _check(point: Point, gpu: GpuConfig) -> None:
    """Hold a row against the rule book; stages it does not describe are as even as can be, ends may have no layer."""
    layout, layers, stages = point.layout, point.model.num_layers, point.layout.pp * point.layout.vp
    if not layout.pipeline_layers and stages > 1 and layers >= stages - len(get_args(PipelineEnd)):
        layout = layout.model_copy(update={"pipeline_layers": lighter_ends(layers, stages)})
    stated = point.model_copy(update={"layout": layout})
    if reason := refusal(fold(stated) if point.inference else stated, gpu=gpu):
        raise _experts_on_context_ranks(point, reason) or UnreadableError(reason)
    if reason := check_order(point) or check_offload(point, gpu):
        raise UnsupportedError(reason)


def _experts_on_context_ranks(point: Point, reason: str) -> UnsupportedError | None:
    """Return what is refused where experts are on context parallel ranks too, as Megatron-LM can have them."""
    layout = point.layout
    ranks = layout.dp * layout.tp // layout.expert_tp
    is_of_ranks = reason.startswith("dp") and "is not divisible by ep" in reason
    if is_of_ranks and ranks * layout.cp % layout.ep == 0:
        return UnsupportedError(
            f"ep {layout.ep} on cp*dp*tp/etp = {ranks * layout.cp} ranks: experts on context parallel ranks are not "
            f"simulated; ep that divides dp*tp/etp = {ranks} is"
        )
    return None


def _read_model(cells: Cells, config: Path) -> ModelConfig:
    """Return the model, with the layers of multi-token prediction and the capacity of experts that the row has."""
    model, number = _read_architecture(cells, config), count(cells, "num_mtp_layers")
    capacity = words.read_number("capacity_factor", cells.get("capacity_factor", ""))
    return ModelChoices(num_mtp_layers=number, capacity_factor=capacity).apply(model)


def _read_architecture(cells: Cells, config: Path) -> ModelConfig:
    """Return the model: known by name, with what the row says in place of what is known; else of the columns alone."""
    shape, named = read_shape(cells), find_model(cells.get("model", ""), config)
    if isinstance(named, Unsupported) and shape.missing:
        raise UnsupportedError(f"{shown(shape.name)} has {named.because}, which are not simulated")
    if isinstance(named, str) and is_of(shape, known := _catalogue(config).model(named)):
        return adapt(shape, known)
    if shape.missing:
        blank = ", ".join(shape.missing)
        raise UnsupportedError(f"{blank} blank: the architecture of {shown(shape.name)} is needed to simulate it")
    need(cells, "seq")
    return build_model(shape)


def _read_layout(cells: Cells, model: ModelConfig, sharding: Sharding, stack: Stack) -> tuple[Layout, int]:
    """Return the layout and the number of GPUs, which follows from it where it is not stated."""
    tp, pp, cp, vp, ep = (count(cells, column) or 1 for column in ("tp", "pp", "cp", "vp", "ep"))
    stated = count(cells, "dp")
    num_gpus = count(cells, "n_gpus") or tp * pp * cp * (stated or 1)
    dp = stated or max(1, num_gpus // (tp * pp * cp))
    if ep == 1 and model.moe and stack.expert_parallel:
        ep = gcd(model.moe.num_experts, dp, stack.expert_parallel)
    etp = count(cells, "etp") or (stack.expert_tensor_parallel if model.moe else None)
    layout = Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        context_exchange=stack.context_exchange if cp > 1 else "ring",
        ep=ep,
        etp=etp,
        vp=vp,
        sequence_parallel=words.read_sequence_parallel(cells.get("seq_parallel", ""), tp) or _needs_it(cells, ep, etp),
        data_parallel_sharding=sharding,
        schedule=usual_schedule(pp, vp),
        pipeline_layers=words.read_stages(cells.get("pipeline_layers", "")),
    )
    return layout, num_gpus


def _needs_it(cells: Cells, ep: int, etp: int | None) -> bool:
    """Return whether a row that does not say so must split the sequence: experts on several ranks beside tp need it."""
    tp, is_training = count(cells, "tp") or 1, words.read_output_tokens(cells) is None
    return is_training and is_blank(cells.get("seq_parallel", "")) and tp > 1 and (ep > 1 or (etp or tp) < tp)


def _shard_size(shards: words.Shards, layout: Layout, gpus_per_node: int) -> int | None:
    """Return how many data parallel ranks shard: as stated, with hybrid sharding those of a node; None for all."""
    of_a_node = gcd(layout.dp, max(1, gpus_per_node // RankMesh(layout).ranks_per_replica))
    size = shards.shard_size or (of_a_node if shards.is_hybrid else layout.dp)
    if size >= layout.dp:
        return None
    if layout.dp % size:
        raise UnreadableError(f"fsdp shards over {size} ranks, which do not divide dp {layout.dp}")
    return size


def _read_gpu(cells: Cells, config: Path) -> tuple[GpuConfig, tuple[str, ...]]:
    """Return the GPU a row names, and others it could mean; interconnect, notes and whole nodes of eight may tell."""
    text = cells.get("gpu", "")
    if is_blank(text):
        raise UnreadableError("gpu is blank, expected a GPU such as H100-SXM-80GB")
    interconnect, notes = cells.get("interconnect", ""), cells.get("notes", "")
    context, assumed, gpus = f"{interconnect}; {notes}", "", _catalogue(config).gpus
    if _CARD.search(context) and not _MODULE.search(context):
        context += "; PCIe only"
    elif (count(cells, "n_gpus") or 1) % _GPUS_OF_HGX == 0:
        assumed = "HGX"
    try:
        found, others = read_gpu(text, gpus, context, assumed)
        check_beside(found, gpus, interconnect, notes)
        return found, others
    except AmbiguousGpuError as error:
        raise UnreadableError(str(error)) from None
    except UnknownGpuError as error:
        raise UnsupportedError(str(error)) from None


@lru_cache(maxsize=4)
def _catalogue(config: Path) -> Catalogue:
    return Catalogue(config)
