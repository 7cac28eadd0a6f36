"""Changes that factors make to a case: to its cluster, links, pipeline or memory."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import changed as _with
from triplepoint.config.cluster import with_adapters as with_nics
from triplepoint.config.gpu_names import find_gpu
from triplepoint.errors import PointError
from triplepoint.simulate.heat.nodes import check_power_limit, is_known
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.units import GIB
from triplepoint.whatif.case import RUNS, Case

_TUNED = ("micro_batch_size", "recompute", "recompute_layers")
"""Attributes of a job that are chosen by what fits in memory."""


def on_gpu(case: Case, name: str, config: Path) -> Case:
    """Return the case on another GPU type."""
    catalogue = Catalogue(config)
    gpu = find_gpu(name, catalogue.gpus).name
    if is_known(case.job.gpu, config) and not is_known(catalogue.gpu(gpu), config):
        known = [other for other, type_ in catalogue.gpus.items() if is_known(type_, config)]
        raise PointError(
            f"gpu: power and heat of {gpu} are not known, those of {case.job.gpu.name} are; expected one of "
            f"{', '.join(known)}"
        )
    return case.on(_with(case.cluster, gpu=gpu, chassis=None, scale_up_link=None), config)


def with_adapters(case: Case, adapters: tuple[int, float], config: Path) -> Case:
    """Return the case with other network adapters: number in a node, and Gb/s of each."""
    number, speed = adapters
    return case.on(with_nics(case.cluster, number, speed), config)


def with_inlet(case: Case, inlet_c: float, config: Path) -> Case:
    """Return the case with another inlet temperature of its nodes. Unit: degC."""
    del config
    return _under(case, inlet_temp_c=inlet_c)


def with_coolant(case: Case, coolant: str, config: Path) -> Case:
    """Return the case cooled by air, liquid or ideally; without air, blocked airflow has no effect."""
    del config
    return _under(case, coolant=coolant, **({} if coolant == "air" else {"blocked_airflow": {}}))


def with_power_limit(case: Case, limit_w: float, config: Path) -> Case:
    """Return the case with another power limit of its GPUs in W; infinite: no limit."""
    if is_known(case.job.gpu, config) and not math.isinf(limit_w):
        check_power_limit("power_limit", limit_w, case.job.gpu, config)
    return _under(case, power_limit_w=limit_w)


def with_slow_gpu(case: Case, slow: tuple[str, float], config: Path) -> Case:
    """Return the case with one GPU at this speed relative to the others; 1: healthy."""
    del config
    return replace(case, cluster=_with(case.cluster, slow_gpus=_faulty(case.cluster.slow_gpus, slow)))


def with_bad_contact(case: Case, bad: tuple[str, float], config: Path) -> Case:
    """Return the case with a factor on the thermal resistance from die to sink of one GPU; 1: healthy."""
    del config
    return _under(case, bad_contact=_faulty(case.cluster.conditions.bad_contact, bad))


def _faulty(known: Mapping[str, float], part: tuple[str, float]) -> dict[str, float]:
    """Return the factors of faulty parts with one added, or removed if its factor is 1."""
    name, factor = part
    others = {other: value for other, value in known.items() if other != name}
    return others if factor == 1 else others | {name: factor}


def with_bad_adapter(case: Case, share: float | None, config: Path) -> Case:
    """Return the case with a node with this share of its network bandwidth. None: one adapter has failed."""
    del config
    if share is None:
        number = int(case.cluster.nics_per_node.value) if case.cluster.nics_per_node else 1
        if number < 2:
            raise PointError(
                f"bad_adapter: a node of cluster {case.cluster.name} has {number} adapter, without it no job runs; "
                "give the share that is left, such as bad_adapter=0.5"
            )
        share = (number - 1) / number
    return case.with_job(fabric=case.job.fabric.faster(True, share))


def with_domain(case: Case, num_gpus: float, config: Path) -> Case:
    """Return the case with scale-up links between this number of GPUs; infinite: all."""
    del config
    number = int(min(num_gpus, max(case.cluster.num_gpus, case.job.num_gpus)))
    package = case.job.fabric.levels[0].num_gpus if len(_inside(case)) > 1 else 1
    if number % package:
        raise PointError(f"domain: {number} GPUs, packages of {case.job.gpu.name} have {package}; give a multiple")
    return case.with_job(fabric=case.job.fabric.with_domain(number))


def _inside(case: Case) -> list[object]:
    """Return the levels of links inside a scale-up domain."""
    return [level for level in case.job.fabric.levels if not level.is_network]


def with_network(case: Case, factor: float, config: Path) -> Case:
    """Return the case with a network this many times as fast; infinite: transfers take no time."""
    del config
    return _with_links(case, True, factor)


def with_scale_up(case: Case, factor: float, config: Path) -> Case:
    """Return the case with links inside nodes this many times as fast; infinite: transfers take no time."""
    del config
    return _with_links(case, False, factor)


def _with_links(case: Case, is_network: bool, factor: float) -> Case:
    fabric = case.job.fabric
    return case.with_job(fabric=fabric.free(is_network) if math.isinf(factor) else fabric.faster(is_network, factor))


def without_bubble(case: Case, value: float, config: Path) -> Case:
    """Return the case with pipeline stages that never wait for each other."""
    del value, config
    _refuse_serving(case, "pipeline")
    return case.with_job(waits_for_stages=False)


def with_memory(case: Case, capacity_bytes: float, config: Path) -> Case:
    """Return the case with another memory capacity of GPUs.

    Recomputation and micro-batch are the fastest that fit, but stay as they are where the present memory holds what is
    as fast: that is no gain of memory, see `tuned`.
    """
    roomy = fastest_with_memory(case, capacity_bytes, config)
    with contextlib.suppress(PointError):
        now = tuned(case, config).job
        same = replace(roomy.job, gpu=now.gpu) == now
        kept = roomy.with_job(**{name: getattr(case.job, name) for name in _TUNED})
        if same and peak_memory(kept.job).fits:
            return kept
    return roomy


def tuned(case: Case, config: Path) -> Case:
    """Return the case with the fastest recomputation and micro-batch that fit in its present memory."""
    return fastest_with_memory(case, case.job.gpu.memory_capacity.value, config)


def fastest_with_memory(case: Case, capacity_bytes: float, config: Path) -> Case:
    """Return the case with another memory capacity of GPUs, and the fastest recomputation and micro-batch that fit."""
    _refuse_serving(case, "memory")
    memory = case.job.gpu.memory_capacity
    capacity = memory.model_copy(update={"value": min(capacity_bytes, _MAX_BYTES)})
    roomy = case.with_job(gpu=case.job.gpu.model_copy(update={"memory_capacity": capacity}))
    fastest = min(_fitting(roomy, config), key=lambda timed: timed[0], default=None)
    if fastest is None:
        raise PointError(
            f"memory: {capacity_bytes / GIB:.1f} GiB hold no micro-batch of {case.name}, whatever is recomputed"
        )
    return fastest[1]


_MAX_BYTES = 1e15
"""Memory capacity that stands for no limit: a petabyte. Unit: byte."""


def _fitting(case: Case, config: Path) -> Iterator[tuple[float, Case]]:
    """Yield the step time and case of combinations of recomputation and micro-batch that fit in memory."""
    job, of_rank = case.job, case.job.global_batch_size // case.job.layout.dp
    present = (job.recompute, job.recompute_layers)
    ways = dict.fromkeys([present, ("none", None), ("selective", None), ("full", None)])
    sizes = dict.fromkeys([job.micro_batch_size, *(2**power for power in range(of_rank.bit_length()))])
    for recompute, layers in ways:
        before = math.inf
        for size in (size for size in sizes if of_rank % size == 0):
            tried = case.with_job(micro_batch_size=size, recompute=recompute, recompute_layers=layers)
            step_s = _step_s(tried, config)
            if step_s is not None:
                yield step_s, tried
            # Above the fastest size, bubbles grow by more than kernels gain.
            if size > job.micro_batch_size and (step_s is None or step_s > before):
                break
            before = step_s or before


def _step_s(case: Case, config: Path) -> float | None:
    """Return the step time at calibrated clocks; None if the case does not fit or cannot run. Unit: s."""
    try:
        if not peak_memory(case.job).fits:
            return None
        prediction = case.predict(config, with_power=False)
    except PointError:
        return None
    return prediction.step_time_s if prediction.status in RUNS else None


def _refuse_serving(case: Case, factor: str) -> None:
    if case.serving:
        raise PointError(f"{factor}: of training only, {case.name} is inference; leave it out")


def _under(case: Case, **changes: Any) -> Case:
    """Return the case with conditions of its cluster changed."""
    conditions = case.cluster.conditions.model_dump() | changes
    return replace(case, cluster=_with(case.cluster, conditions=conditions))
