"""One row of a published table, and the job that it describes."""

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
"""Columns that are read; others are ignored. Required are gpu and gbs, and either a model with a known name or hidden,
layers, heads and seq."""

_CARD = re.compile("pci-?e|pci express", re.IGNORECASE)
_MODULE = re.compile(r"nvlink|sxm|hgx|dgx|gen|pci-?e\s*[3-6]|pci express\s*[3-6]", re.IGNORECASE)
"""Words that state the form factor module. A generation of PCIe is among them, as modules have PCIe to the host too."""

_GPUS_OF_HGX = 8
"""GPUs of an HGX node. In jobs of a multiple of these, a GPU name that fits a module and a card means the module."""

_MICRO_BATCHES = (4, 2, 1)
"""Micro-batch sizes to try where a row states none: beyond 4 sequences published layouts gain nothing."""


@dataclass(frozen=True)
class Row:
    """A row of a published table, as understood.

    Attributes:
        id: Identifier of the row in the output.
        job: The job; None where the row has a status instead.
        status: Reason class for a missing job: `invalid` for a row that contradicts itself or cannot be read,
            `unsupported` for one that the simulator does not support.
        reason: Explanation of the status in one line.
        open_choices: Choices that the row leaves open, to be made by memory: micro_batch, recompute.
        serving: Prompt, output and batch size of an inference job; None for training.
        unstated: Columns that leave open what memory depends on; see `published.unstated`.
        notes: Assumptions made for ambiguous or unknown words.
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
        """Predict the row, with power and heat on request. An error becomes the status of the prediction."""
        if self.job is None:
            assert self.status
            return Prediction(self.status, self.reason)
        try:
            job = self.job if self.serving else settle(self)
            prediction = predict_job(job, self.serving, config, with_power=with_power)
        except (ArithmeticError, ValueError, MemoryError) as error:
            # Unforeseen numbers in one row must not stop the prediction of the others.
            line = " ".join(str(error).split())[:200]
            return Prediction(PredictionStatus.UNSUPPORTED, f"cannot be simulated: {type(error).__name__} {line}")
        if prediction.status == PredictionStatus.OOM and (savings := self._may_fit_with()):
            reason = f"{prediction.reason}; may fit with {savings}, which the row does not say it lacks"
            prediction = replace(prediction, status=PredictionStatus.UNDECIDED, reason=reason)
        return replace(prediction, reason="; ".join(filter(None, (prediction.reason, *self.notes))))

    def _may_fit_with(self) -> str:
        return "" if self.serving else may_fit_with(settle(self), self.unstated)


def read_row(cells: Cells, number: int, config: Path) -> Row:
    """Read a row; one that cannot be read has a status instead of a job.

    Args:
        cells: Text by column.
        number: Number of the row, from 1, which is its identifier where the table has none. Line breaks in an
            identifier become spaces.
        config: Folder of the configuration.
    """
    row_id = " ".join(cells.get("id", "").splitlines()).strip() or str(number)
    try:
        return _read(row_id, cells, config)
    except UnreadableError as error:
        return Row(row_id, None, PredictionStatus.INVALID, str(error))
    except ValidationError as error:
        first = error.errors()[0]
        return Row(row_id, None, PredictionStatus.INVALID, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    except UnsupportedError as error:
        return Row(row_id, None, PredictionStatus.UNSUPPORTED, str(error))


def settle(row: Row) -> Job:
    """Return the job of a row with its open choices made by what fits in memory.

    Recomputation is the least that fits. The micro-batch is the largest of 1, 2 and 4 that fits with it, or 1 with a
    pipeline.
    """
    assert row.job is not None
    job = row.job
    for recompute in ("none", "selective", "full") if "recompute" in row.open_choices else (row.job.recompute,):
        for size in _micro_batches(row):
            job = replace(row.job, recompute=recompute, micro_batch_size=size)
            if not row.open_choices or peak_memory(job).total <= job.gpu.memory_capacity.value:
                return job
    return job


def _micro_batches(row: Row) -> list[int]:
    assert row.job is not None
    if "micro_batch" not in row.open_choices or row.job.layout.pp > 1:
        return [row.job.micro_batch_size]
    per_rank = row.job.global_batch_size // row.job.layout.dp
    return [size for size in _MICRO_BATCHES if per_rank % size == 0]


def _read(row_id: str, cells: Cells, config: Path) -> Row:
    gpu, other_gpus = _read_gpu(cells, config)
    if line := check_one(cells.get("framework", ""), config):
        raise UnreadableError(f"framework {line}")
    stack = find_stack(cells.get("framework", ""), config)
    model = _read_model(cells, config)
    shards = words.read_shards(cells.get("fsdp", ""))
    point = _read_point(cells, model, gpu, shards, stack)
    _check(point, gpu)
    if reason := next(iter(without_effect(point, _conditional_settings(cells, point)).values()), None):
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
        notes += _network_notes(gpu, network)
    return Row(row_id, job, open_choices=open_choices, serving=serving, unstated=unstated(cells), notes=notes)


def _conditional_settings(cells: Cells, point: Point) -> dict[str, object]:
    """Return the stated settings, by name, whose effect depends on other settings."""
    stated = {name: getattr(point, name) for name in software.COLUMNS if not is_blank(cells.get(name, ""))}
    if point.recompute_modules:
        stated["recompute_modules"] = point.recompute_modules
    etp = count(cells, "etp")
    numbers = {
        # Without experts, etp is 1.
        "etp": etp if etp != 1 else None,
        "output_tokens": words.read_count("output_tokens", cells.get("output_tokens", "")),
        "capacity_factor": words.read_number("capacity_factor", cells.get("capacity_factor", "")),
    }
    return stated | {name: value for name, value in numbers.items() if value}


def _notes(
    cells: Cells, gpu: GpuConfig, other_gpus: tuple[str, ...], network: StatedNetwork, config: Path
) -> tuple[str, ...]:
    """Return notes on ambiguous and unknown words of a row."""
    framework = cells.get("framework", "")
    notes = (
        f"gpu {shown(cells.get('gpu', ''))} is taken as {gpu.name}, could be {' or '.join(other_gpus)}"
        if other_gpus
        else "",
        "" if is_blank(framework) else unknown_stack(framework, config),
        "the rate of the interconnect is taken as that of a node" if network.is_of_unknown else "",
        f"interconnect: not read: {', '.join(network.unread)}"[:120] if network.unread else "",
    )
    return tuple(filter(None, notes))


def _network_notes(gpu: GpuConfig, network: StatedNetwork) -> tuple[str, ...]:
    """Return notes on what is assumed for an incompletely stated network between nodes."""
    num_nics = network.num_nics or network.nics_per_gpu
    if network.is_silent and not num_nics:
        return (f"interconnect states no rate: {usual_words(gpu)} of a node is assumed, usual of {gpu.name}",)
    if num_nics and not (network.bandwidth or network.nic_bandwidth):
        rate = usual_words(gpu).split("x")[1]
        return (f"interconnect states no rate: adapters of {rate} are assumed, usual of {gpu.name}",)
    if network.nic_bandwidth and not num_nics:
        number = usual_words(gpu).split("x")[0]
        return (f"interconnect states no adapters: {number} of a usual node of {gpu.name} are assumed",)
    return ()


def _read_point(cells: Cells, model: ModelConfig, gpu: GpuConfig, shards: words.Shards, stack: Stack) -> Point:
    """Return the point of a row, where an open micro-batch is 1 and open recomputation is none."""
    layout, num_gpus = _read_layout(cells, model, shards.sharding, stack)
    recompute, recompute_layers = words.read_recompute(cells.get("recompute", ""))
    # A row without a sequence length has that of the model with the known name.
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


def _overlap(stack: Stack, in_fsdp: words.Overlap | None, stated: frozenset[Overlap] | None) -> tuple[Overlap, ...]:
    """Return the overlapped communication, from columns `overlap` and `fsdp`, or that of the stack.

    Args:
        stack: Software stack.
        in_fsdp: Overlap that column `fsdp` states.
        stated: Overlap that column `overlap` states.
    """
    if stated is not None:
        return tuple(kind for kind in get_args(Overlap) if kind in stated)
    return tuple(kind for kind in stack.overlap if in_fsdp is None or kind in ("tp", "ep") or kind in in_fsdp)


def _check(point: Point, gpu: GpuConfig) -> None:
    """Raise an error if the point breaks a rule or the simulator does not support it.

    Pipeline stages that a row does not describe are as even as possible, and the first and last may have no layer.
    """
    layout, layers, stages = point.layout, point.model.num_layers, point.layout.pp * point.layout.vp
    if not layout.pipeline_layers and stages > 1 and layers >= stages - len(get_args(PipelineEnd)):
        layout = layout.model_copy(update={"pipeline_layers": lighter_ends(layers, stages)})
    even = point.model_copy(update={"layout": layout})
    if reason := refusal(fold(even) if point.inference else even, gpu=gpu):
        raise _experts_on_context_ranks(point, reason) or UnreadableError(reason)
    if reason := check_order(point) or check_offload(point, gpu):
        raise UnsupportedError(reason)


def _experts_on_context_ranks(point: Point, reason: str) -> UnsupportedError | None:
    """Return the error for experts on context parallel ranks, which Megatron-LM supports and the simulator does not.

    None where the layout is invalid even so.
    """
    layout = point.layout
    ranks = layout.dp * layout.tp // layout.expert_tp
    is_about_ep = reason.startswith("dp") and "is not divisible by ep" in reason
    if is_about_ep and ranks * layout.cp % layout.ep == 0:
        return UnsupportedError(
            f"ep {layout.ep} on cp*dp*tp/etp = {ranks * layout.cp} ranks: experts on context parallel ranks are not "
            f"simulated; ep that divides dp*tp/etp = {ranks} is"
        )
    return None


def _read_model(cells: Cells, config: Path) -> ModelConfig:
    """Return the model of a row, with its layers of multi-token prediction and its capacity of experts."""
    model, number = _read_architecture(cells, config), count(cells, "num_mtp_layers")
    capacity = words.read_number("capacity_factor", cells.get("capacity_factor", ""))
    return ModelChoices(num_mtp_layers=number, capacity_factor=capacity).apply(model)


def _read_architecture(cells: Cells, config: Path) -> ModelConfig:
    """Return the model with the row's name and the row's changes, or a model from the columns alone."""
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
    """Return the layout and the number of GPUs, which follows from the layout where it is not stated."""
    tp, pp, cp, vp, ep = (count(cells, column) or 1 for column in ("tp", "pp", "cp", "vp", "ep"))
    stated_dp = count(cells, "dp")
    num_gpus = count(cells, "n_gpus") or tp * pp * cp * (stated_dp or 1)
    dp = stated_dp or max(1, num_gpus // (tp * pp * cp))
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
        sequence_parallel=words.read_sequence_parallel(cells.get("seq_parallel", ""), tp)
        or _needs_sequence_parallel(cells, ep, etp),
        data_parallel_sharding=sharding,
        schedule=usual_schedule(pp, vp),
        pipeline_layers=words.read_stages(cells.get("pipeline_layers", "")),
    )
    return layout, num_gpus


def _needs_sequence_parallel(cells: Cells, ep: int, etp: int | None) -> bool:
    """Return whether a row that does not state sequence parallelism needs it, for expert and tensor parallelism."""
    tp, is_training = count(cells, "tp") or 1, words.read_output_tokens(cells) is None
    return is_training and is_blank(cells.get("seq_parallel", "")) and tp > 1 and (ep > 1 or (etp or tp) < tp)


def _shard_size(shards: words.Shards, layout: Layout, gpus_per_node: int) -> int | None:
    """Return the data parallel ranks per sharding group; None where all ranks are one group.

    Without a stated size, a group of hybrid sharding is the ranks of a node.
    """
    ranks_of_node = gcd(layout.dp, max(1, gpus_per_node // RankMesh(layout).ranks_per_replica))
    size = shards.shard_size or (ranks_of_node if shards.is_hybrid else layout.dp)
    if size >= layout.dp:
        return None
    if layout.dp % size:
        raise UnreadableError(f"fsdp shards over {size} ranks, which do not divide dp {layout.dp}")
    return size


def _read_gpu(cells: Cells, config: Path) -> tuple[GpuConfig, tuple[str, ...]]:
    """Return the GPU type that a row names, and other types that it could mean.

    Interconnect, notes and whole nodes of eight GPUs help to distinguish modules from cards.
    """
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
        gpu, others = read_gpu(text, gpus, context, assumed)
        check_beside(gpu, gpus, interconnect, notes)
        return gpu, others
    except AmbiguousGpuError as error:
        raise UnreadableError(str(error)) from None
    except UnknownGpuError as error:
        raise UnsupportedError(str(error)) from None


@lru_cache(maxsize=4)
def _catalogue(config: Path) -> Catalogue:
    return Catalogue(config)
