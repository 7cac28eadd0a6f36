"""Validity rules of points, shared by `plan`, `predict`, `simulate` and `launch`.

The rules here are those of Megatron-LM and hold for every engine and the simulator. The limits of a single engine
belong to that engine; `refusal` checks them last. Rules apply to folded points: `fold` resets settings without effect
to their default, so that equal measurements are one point.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd, isqrt
from pathlib import Path
from typing import Any

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import BYTES, DEFAULTS, SETTINGS, Layout, Point

_POINT_KEYS = frozenset(Point.model_fields)
_LAYOUT_KEYS = frozenset(Layout.model_fields)
_FOLDS = {name: setting.fold for name, setting in SETTINGS.items() if setting.fold is not None}
"""Folding functions of settings, by name."""
_LIMITED_ENGINES = {name: SETTINGS[name].engines for name in DEFAULTS if SETTINGS[name].engines}
"""Engines that support a setting, by name, for the settings that not all engines support."""


def fold(point: Point) -> Point:
    """Return the point with settings without effect reset to their default, and with its engine revision.

    Settings are folded in the order of their declaration, so each folding function sees the earlier ones folded.
    """
    for name, fold_setting in _FOLDS.items():
        section = point.layout if name in _LAYOUT_KEYS else point
        value = fold_setting(point)
        if value is getattr(section, name):  # true for most settings, and copying is slow
            continue
        changes = {name: value} if section is point else {"layout": point.layout.model_copy(update={name: value})}
        point = point.model_copy(update=changes)
    return point.model_copy(update={"engine_revision": engine_revision(point)})


def engine_revision(point: Point) -> int:
    """Return the `Point.engine_revision` of a point in this version of Triplepoint."""
    layout = point.layout
    if point.engine == "native" and layout.tp > 1:
        return 4
    had_whole_experts = point.engine == "megatron" or (
        point.engine == "native" and layout.ep > 1 and point.inference is None
    )
    if had_whole_experts and point.model.moe and layout.expert_tp > 1:
        return 3
    return 2 if point.engine == "native" and point.recompute == "selective" else 1


def without_effect(point: Point, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return messages about chosen settings that have no effect in a point, by name.

    Args:
        point: The point.
        chosen: Chosen values that differ from the default, by name.
    """
    messages = {}
    for name, value in chosen.items():
        need = SETTINGS[name].needs if name in SETTINGS else None
        if need is None:
            continue
        # Check the value as chosen: folding removes elements without effect from a list.
        is_folded = name in _POINT_KEYS and getattr(point, name) != value
        if not need.is_met(point.model_copy(update={name: value}) if is_folded else point):
            messages[name] = f"{name}: {_yaml(value)} has no effect without {need.words}; leave it out"
    return messages


BYTE_VOCABULARY = 256
"""Vocabulary size of byte tokens."""

Rule = Callable[[Point], str | None]
"""A validity rule: returns in one line why a point cannot run and what to change; None if it can run."""


def refusal(
    point: Point, cluster: ClusterConfig | None = None, gpu: GpuConfig | None = None, limits: Iterable[Rule] = ()
) -> str | None:
    """Return the first reason why a folded point cannot run; None if it can.

    Args:
        point: The folded point.
        cluster: Cluster of the point; None if only the number of ranks is known, as for a published run.
        gpu: GPU type; None on cpu. Without GPU type and cluster the number format is not checked.
        limits: Rules of the point's engine.
    """
    if cluster and (reason := check_capacity(point, cluster)):
        return reason
    reason = check_world_size(point, cluster)
    if not reason and (cluster or gpu):
        reason = check_format(point, gpu)
    return reason or next((reason for rule in (*RULES, *limits) if (reason := rule(point))), None)


def check_capacity(point: Point, cluster: ClusterConfig) -> str | None:
    """Check that the cluster has enough GPUs and that the ranks fill whole nodes."""
    num_gpus, per_node, word = point.num_gpus, cluster.gpus_per_node, _devices(point)
    if num_gpus > cluster.num_gpus:
        most = cluster.num_gpus
        return f"num_gpus: {num_gpus}, cluster {cluster.name} has {most} {word}; set num_gpus: {most}"
    if num_gpus > per_node and num_gpus % per_node:
        fits = num_gpus - num_gpus % per_node
        return f"num_gpus: {num_gpus} does not fill whole nodes of {per_node} {word}; set num_gpus: {fits}"
    return None


def check_world_size(point: Point, cluster: ClusterConfig | None = None) -> str | None:
    """Check that the product of the parallel degrees is the number of ranks."""
    layout, num_gpus = point.layout, point.num_gpus
    model_parallel = layout.tp * layout.pp * layout.cp
    if model_parallel * layout.dp == num_gpus:
        return None
    product = f"tp*pp*cp*dp = {layout.tp}*{layout.pp}*{layout.cp}*{layout.dp} = {model_parallel * layout.dp}"
    ranks = f"num_gpus is {num_gpus}"
    if cluster and num_gpus == cluster.num_gpus:
        ranks = f"cluster {cluster.name} has {num_gpus} {_devices(point)}"
    if num_gpus % model_parallel:
        return f"{product}, {ranks}; choose tp, pp and cp whose product divides {num_gpus}"
    return f"{product}, {ranks}; set dp: {num_gpus // model_parallel}"


_MXFP8_ARCHITECTURES = ("Blackwell", "CDNA 4")
"""Architectures whose matrix units support one scale per 32 numbers (OCP microscaling formats)."""


def check_format(point: Point, gpu: GpuConfig | None) -> str | None:
    """Check that the device supports the number format."""
    if point.precision == "fp8" and (gpu is None or gpu.peak_fp8_flops is None):
        return f"precision: fp8, {gpu.name if gpu else 'cpu'} has no fp8 units; set precision: bf16"
    if point.precision == "nvfp4" and (gpu is None or gpu.peak_nvfp4_flops is None):
        other = "fp8" if gpu and gpu.peak_fp8_flops else "bf16"
        return f"precision: nvfp4, {gpu.name if gpu else 'cpu'} has no units for it; set precision: {other}"
    is_mxfp8 = point.precision == "fp8" and point.fp8_recipe == "mxfp8"
    if is_mxfp8 and gpu and gpu.architecture not in _MXFP8_ARCHITECTURES:
        return f"fp8_recipe: mxfp8, {gpu.name} has no units for scales of 32 numbers; set fp8_recipe: blockwise"
    if point.precision == "bf16" and gpu is not None and not gpu.has_bf16:
        return f"precision: bf16, {gpu.name} has no bf16 units; set precision: fp16"
    return None


def check_tensor_parallel(point: Point) -> str | None:
    """Check that heads, query groups and feed-forward width are divisible by tp.

    Query groups must be a multiple of tp, as Megatron-LM requires (TransformerConfig). Replicated key and value heads
    would lift this, but not all engines have them. The hidden size is a multiple of the heads and needs no check.
    """
    model, tp = point.model, point.layout.tp
    for name, size in _split_over_tp(model):
        if size % tp:
            fits = _nearest(tp, (degree for degree in range(1, tp) if size % degree == 0))
            return f"{name} {size} is not divisible by tp: {tp}; set tp: {fits}"
    return None


def _split_over_tp(model: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yield key and size of each dimension that tensor parallelism splits."""
    kinds = set(model.layer_kinds)
    if any(kind.has_attention or kind.has_shared_block for kind in kinds):
        yield "num_attention_heads", model.num_attention_heads
        if not model.latent:
            # With latent attention each head has its own keys, computed from a vector that every rank has.
            yield "num_query_groups", model.num_query_groups
    for mixer in filter(None, map(model.recurrent, kinds)):
        yield "heads of mixers", mixer.heads
        if mixer.has_groups:
            yield "groups of mixers", mixer.groups
    if any(kind.has_feed_forward or kind.has_shared_block for kind in kinds):
        yield "ffn_hidden_size", model.ffn_hidden_size


def check_pipeline(point: Point) -> str | None:
    """Check that the layers split over the pipeline stages, evenly or as the settings say."""
    layout, layers = point.layout, point.model.num_layers
    stages = layout.pp * layout.vp
    if layout.pp > 1 and point.model.shared_block:
        return f"pp: {layout.pp}, layers of model {point.model.name} share the weights of blocks; set pp: 1"
    if layout.vp > 1 and layout.pp == 1:
        return f"vp: {layout.vp} needs pipeline parallelism, pp is 1; set vp: 1"
    if layout.pipeline_ends and layout.pipeline_layers:
        return "pipeline_ends and pipeline_layers both say how layers are split; leave one out"
    if layout.pipeline_layers:
        return _check_pipeline_layers(point)
    if ends := layout.pipeline_ends:
        total = layers + len(ends)
        return (
            f"num_layers {layers} with {' and '.join(ends)} is {total}, not divisible by pp*vp = {stages}; change "
            "pipeline_ends or give pipeline_layers"
        )
    if layers % stages:
        ranks = point.num_gpus // (layout.tp * layout.cp)
        fits = [pp for pp in range(1, layers + 1) if layers % (pp * layout.vp) == 0 and ranks % pp == 0]
        advice = f"set pp: {_nearest(layout.pp, fits)}" if fits else "set vp: 1"
        if layers > stages:
            advice += " or give pipeline_layers"
        elif layers + 2 == stages:
            advice += ", or pipeline_ends: [embedding, loss]"
        return f"num_layers {layers} is not divisible by pp*vp = {layout.pp}*{layout.vp} = {stages}; {advice}"
    return None


def _check_pipeline_layers(point: Point) -> str | None:
    """Check that `pipeline_layers` has one number per stage and that their sum is the number of layers."""
    layout, given, layers = point.layout, point.layout.pipeline_layers, point.model.num_layers
    stages = layout.pp * layout.vp
    if len(given) != stages:
        number = f"{layout.pp}*{layout.vp} = {stages}"
        return f"pipeline_layers has length {len(given)}, pp*vp = {number}; give the layers of each stage"
    if sum(given) != layers:
        return f"pipeline_layers: {sum(given)} layers in all, num_layers is {layers}; let the sum be {layers}"
    return None


def check_recompute(point: Point) -> str | None:
    """Check that `recompute_layers` is not above the layers of the largest stage."""
    layers, most = point.recompute_layers, max(point.layout.stage_layers(point.model.num_layers))
    if layers is not None and layers > most:
        where = "stage" if point.layout.pp > 1 else "model"
        return f"recompute_layers: {layers}, the largest {where} has {most}; set at most {most}, or none for all"
    return None


def check_schedule(point: Point) -> str | None:
    """Check that the pipeline schedule fits the virtual stages and the number of micro-batches."""
    layout, count = point.layout, point.num_microbatches
    if layout.pp > 1 and layout.schedule is None and point.task != "inference":
        return f"pp: {layout.pp} needs a schedule; set schedule: {'interleaved_1f1b' if layout.vp > 1 else '1f1b'}"
    if layout.schedule in ("gpipe", "1f1b") and layout.vp > 1:
        return f"schedule: {layout.schedule} has one stage per rank, vp is {layout.vp}; set schedule: interleaved_1f1b"
    if layout.schedule != "interleaved_1f1b":
        return None
    if layout.vp == 1:
        return "schedule: interleaved_1f1b needs vp above 1; set vp: 2 or schedule: 1f1b"
    if count % layout.pp:
        return f"schedule: interleaved_1f1b needs num_microbatches {count} divisible by pp: {layout.pp}; set vp: 1"
    return None


def check_sequence(point: Point) -> str | None:
    """Check that the ranks that share a sequence divide its tokens, and its heads where these are split too."""
    layout, length = point.layout, point.sequence_length
    if layout.context_exchange == "all_to_all":
        ranks = layout.tp * layout.cp
        # DeepSpeed and Megatron-Core split key and value heads too (cp_comm_type a2a).
        heads = point.model.num_attention_heads if point.model.latent else point.model.num_query_groups
        if heads % ranks:
            return f"context_exchange: all_to_all splits heads, {heads} is not divisible by tp*cp = {ranks}; set ring"
    if layout.cp > 1 and length % (2 * layout.cp):
        # Each rank takes one chunk from the front and one from the back, for equal work under the causal mask.
        return f"sequence_length {length} is not divisible by 2*cp = {2 * layout.cp}; set a multiple of it"
    shared = layout.tp * layout.cp
    for mixer in filter(None, map(point.model.recurrent, set(point.model.layer_kinds))) if layout.cp > 1 else ():
        if mixer.heads % shared:
            # Context parallel ranks exchange parts of the sequence for heads.
            fits = max(cp for cp in range(1, layout.cp) if mixer.heads % (layout.tp * cp) == 0)
            return f"heads of mixers {mixer.heads} is not divisible by tp*cp = {shared}; set cp: {fits}"
    if layout.sequence_parallel and length % shared:
        return f"sequence_parallel needs sequence_length {length} divisible by tp*cp = {shared}; set a multiple of it"
    return None


def check_experts(point: Point) -> str | None:
    """Check that ep and etp fit the experts, the tensor parallel degree and the ranks of a stage."""
    layout, moe = point.layout, point.model.moe
    ep, tp, etp = layout.ep, layout.tp, layout.expert_tp
    if moe is None:
        return f"ep: {ep}, model {point.model.name} has no experts; set ep: 1" if ep > 1 else None
    if tp % etp:
        return f"etp: {etp} does not divide tp: {tp}; set etp: {gcd(etp, tp)}"
    ranks = layout.dp * tp // etp
    if moe.num_experts % ep or ranks % ep:
        ways = f"dp {ranks}" if etp == tp else f"dp*tp/etp = {layout.dp}*{tp}/{etp} = {ranks}"
        size = f"num_experts {moe.num_experts}" if moe.num_experts % ep else ways
        both = [degree for degree in range(1, ranks + 1) if moe.num_experts % degree == 0 and ranks % degree == 0]
        return f"{size} is not divisible by ep: {ep}; set ep: {_nearest(ep, both)}"
    if point.task == "inference":
        return None if etp == tp else f"etp: {etp} needs sequence parallelism, which inference has none; set etp: {tp}"
    if tp > 1 and not layout.sequence_parallel and (ep > 1 or etp < tp):
        # Megatron-LM's rule (ModelParallelConfig): otherwise every tensor parallel rank would dispatch the same tokens.
        name = f"ep: {ep}" if ep > 1 else f"etp: {etp}"
        return f"{name} with tp: {tp} needs sequence parallelism; set sequence_parallel: true"
    return None


def check_batch(point: Point) -> str | None:
    """Check that every data parallel rank has whole micro-batches."""
    batch, micro, dp = point.global_batch_size, point.micro_batch_size, point.layout.dp
    if batch % (micro * dp) == 0:
        return None
    problem = f"global_batch_size {batch} is not divisible by micro_batch_size*dp = {micro}*{dp} = {micro * dp}"
    if batch % dp:
        return f"{problem}; set global_batch_size: {micro * dp * max(1, round(batch / (micro * dp)))}"
    fits = _nearest(micro, _divisors(batch // dp))
    return f"{problem}; set micro_batch_size: {fits}"


def check_task(point: Point) -> str | None:
    """Check that LoRA adapters have a layer to belong to, and that inference has no context parallelism."""
    if point.task == "inference" and point.layout.cp > 1:
        return f"cp: {point.layout.cp} is of no use to task: inference; set cp: 1"
    moe, lora = point.model.moe, point.lora
    if lora is None or moe is None or {"linear_qkv", "linear_proj"} & set(lora.targets):
        return None
    if moe.num_dense_layers or moe.shared_ffn_hidden_size:
        return None
    return f"lora_targets {', '.join(lora.targets)}: routed experts have no adapters; add linear_qkv or linear_proj"


def check_corpus(point: Point) -> str | None:
    """Check that corpus, samples, tokenizer and vocabulary fit together, without reading the corpus."""
    if point.samples == "padded" and point.corpus == "random":
        return "samples: padded needs documents, and random tokens have none; set samples: packed"
    if Path(f"{point.corpus}.idx").is_file():
        if point.tokenizer == BYTES:
            return None
        return f"tokenizer: {point.tokenizer}, corpus {point.corpus} has tokens of its own; set tokenizer: {BYTES}"
    if point.corpus != "random" and point.tokenizer == BYTES and point.model.vocab_size < BYTE_VOCABULARY:
        return f"corpus: {point.corpus} has byte tokens, vocab_size {point.model.vocab_size} is below {BYTE_VOCABULARY}"
    return None


def check_engine(point: Point) -> str | None:
    """Check that the engine supports every setting that is not at its default."""
    for name, engines in _LIMITED_ENGINES.items():
        if point.engine in engines:
            continue
        value, default = getattr(point.layout if name in _LAYOUT_KEYS else point, name), DEFAULTS[name]
        if value != default:
            return (
                f"{name}: {_yaml(value)}, the {point.engine} engine has none; set {name}: {_yaml(default)} or "
                f"engine: {' or '.join(engines)}"
            )
    return None


def check_expert_overlap(point: Point) -> str | None:
    """Check that only the simulator overlaps the token exchange with another micro-batch."""
    if "ep" in point.overlap and point.engine != "simulated":
        return f"overlap ep, the {point.engine} engine does not overlap it; remove ep from overlap or engine: simulated"
    return None


def _yaml(value: Any) -> str:
    """Return a value as the text of a study file."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def check_trace_ranks(point: Point) -> str | None:
    """Check that the ranks that write a trace exist."""
    ranks = () if point.trace_ranks == "all" else point.trace_ranks
    outside = [rank for rank in ranks if not 0 <= rank < point.num_gpus]
    return f"trace_ranks: {outside[0]} is not a rank, they go from 0 to {point.num_gpus - 1}" if outside else None


def check_hosts(point: Point) -> str | None:
    """Check that there is one host per node, and that power limits name GPUs on these hosts."""
    hosts, number, is_simulated = point.hosts, point.num_nodes, point.engine == "simulated"
    if not hosts and not point.gpu_power_limits_w:
        return None
    if hosts and (len(hosts) != number or len(set(hosts)) != number):
        return f"hosts names {len(set(hosts))} different ones, the run has {number} nodes; name one for each"
    known = tuple(f"node{node}" for node in range(number)) if is_simulated else hosts
    for host in hosts:
        if host not in known:
            return f"hosts: {host}, a simulated run of {number} nodes has node0 to node{number - 1}; name these"
    if not point.gpu_power_limits_w:
        return None
    if point.cluster.device == "cpu":
        return "gpu_power_limits_w: the run has no GPUs; leave it out"
    if not known:
        return "gpu_power_limits_w names hosts, hosts says none; set hosts, in rank order"
    limits_w = point.power_limits_w
    if len(limits_w) < len(point.gpu_power_limits_w):
        return "gpu_power_limits_w names a GPU twice; give one limit for each"
    for host, device in limits_w:
        if host not in known or device >= point.cluster.gpus_per_node:
            nodes = f"{known[0]} to {known[-1]}" if number > 1 else known[0]
            return f"gpu_power_limits_w: {host}.gpu{device}, the run has GPUs of {nodes}, counted from 0; name these"
    return None


def check_revision(point: Point) -> str | None:
    """Check that the point was planned for the present revision of its engine."""
    now = engine_revision(point)
    if point.engine_revision == now:
        return None
    return (
        f"engine_revision: {point.engine_revision}, for these settings the {point.engine} engine has {now} in this "
        "version; write the plan again with 'triplepoint plan --write'"
    )


RULES: tuple[Rule, ...] = (
    check_revision,
    check_tensor_parallel,
    check_pipeline,
    check_recompute,
    check_batch,
    check_schedule,
    check_sequence,
    check_experts,
    check_task,
    check_corpus,
    check_engine,
    check_expert_overlap,
    check_trace_ranks,
    check_hosts,
)
"""Rules that need the point only; the first reason is the one reported."""


def _devices(point: Point) -> str:
    return "ranks" if point.cluster.device == "cpu" else "GPUs"


def _divisors(number: int) -> set[int]:
    """Return all divisors. The search ends at the square root because a batch may be very large."""
    small = {divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0}
    return small | {number // divisor for divisor in small}


def _nearest(wanted: int, fits: Iterable[int]) -> int:
    """Return the value nearest to the wanted one; of two equally near, the larger."""
    return min(fits, key=lambda value: (abs(value - wanted), -value))
