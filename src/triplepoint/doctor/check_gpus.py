"""Checks of the GPUs of one node."""

from collections.abc import Callable, Sequence

from triplepoint.doctor.check import Check, Expected, Status, by_gpu, worst
from triplepoint.doctor.facts import GpuFacts, NodeFacts
from triplepoint.units import GIB

Finding = tuple[Status, str]
"""What is found on one GPU."""

_NEAR = 0.06
"""Memory the driver shows may be less than is sold, by what error correction and the driver keep: relative."""


def check_gpus(facts: NodeFacts, expected: Expected) -> list[Check]:
    """Return the checks of a node's GPUs; a single one, skipped or failed, where there are none."""
    if not facts.gpus:
        return [_no_gpus(facts, expected)]
    return [
        _count(facts, expected),
        _over(facts, "gpu type", lambda gpu: _type(gpu, expected), _type_expected(expected), "use the right partition"),
        _over(
            facts,
            "power limit",
            lambda gpu: _power_limit(gpu, expected),
            "the default",
            "set it again: nvidia-smi -pl, amd-smi",
        ),
        _over(facts, "clocks", lambda gpu: _clocks(gpu, expected), "the default", "reset clocks: nvidia-smi -rac -rgc"),
        _over(facts, "slowdown", _slowdown, "none", "look at cooling and power supply of the node"),
        _over(facts, "memory errors", _memory_errors, "none", "drain the node and reset or replace the GPU"),
        _over(facts, "pcie", _pcie, "full width and generation", "reseat the GPU or its riser; drain the node"),
        _over(facts, "nvlink/xgmi", _links, "all links up", "drain the node; look at its fabric manager"),
        _over(facts, "other work", _processes, "no process", "ask for the node exclusively"),
        _telemetry(facts),
        _xids(facts),
    ]


def _no_gpus(facts: NodeFacts, expected: Expected) -> Check:
    if expected.has_gpus and expected.cluster:
        advice = "is this the right partition, and the environment of envs/?"
        number = f"{expected.cluster.gpus_per_node} of {expected.cluster.gpu}"
        return Check("gpus", "fail", facts.no_gpus_because, number, advice, (facts.host,))
    return Check("gpus", "skipped", facts.no_gpus_because, nodes=(facts.host,))


def _over(
    facts: NodeFacts, name: str, judge: Callable[[GpuFacts], Finding | None], expected: str, advice: str
) -> Check:
    """Return the check of one question over all GPUs: the worst answer, with the GPUs that gave it."""
    answers = [(gpu.index, found) for gpu in facts.gpus if (found := judge(gpu)) is not None]
    if not answers:
        return Check(name, "skipped", _refusal(facts.gpus), nodes=(facts.host,))
    status = worst(finding[0] for _, finding in answers)
    told = by_gpu([(index, text) for index, (of, text) in answers if of == status])
    if status == "ok":
        return Check(name, status, told, nodes=(facts.host,))
    return Check(name, status, told, expected, advice, (facts.host,))


def _refusal(gpus: Sequence[GpuFacts]) -> str:
    lost = [(gpu.index, gpu.refused["gpu"]) for gpu in gpus if "gpu" in gpu.refused]
    return by_gpu(lost) if lost else "the driver does not tell"


def _count(facts: NodeFacts, expected: Expected) -> Check:
    lost = [(gpu.index, f"lost ({gpu.refused['gpu']})") for gpu in facts.gpus if "gpu" in gpu.refused]
    found = f"{len(facts.gpus)}" + (f"; {by_gpu(lost)}" if lost else "")
    wanted = expected.cluster.gpus_per_node if expected.cluster else len(facts.gpus)
    told = f"{wanted}, {expected.where}" if expected.cluster else ""
    nodes = (facts.host,)
    if lost or len(facts.gpus) != wanted:
        return Check("gpu count", "fail", found, told, "drain the node, or correct gpus_per_node", nodes)
    seen = facts.num_torch_devices
    if seen != wanted:
        has = "torch is not installed" if seen is None else f"the driver shows {found}, torch sees {seen}"
        advice = "install the environment of envs/; unset CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"
        return Check("gpu count", "fail" if expected.cluster else "warn", has, told, advice, nodes)
    return Check("gpu count", "ok", found, told, nodes=nodes)


def _type_expected(expected: Expected) -> str:
    if expected.gpu is None:
        return ""
    return f"{expected.gpu.product}, {expected.gpu.memory_capacity.value / GIB:.1f} GiB"


def _type(gpu: GpuFacts, expected: Expected) -> Finding | None:
    if gpu.product is None:
        return None
    memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / GIB:.1f} GiB"
    text = f"{gpu.product}{memory}"
    if expected.gpu is None:
        return "ok", text
    is_named = expected.gpu.name in gpu.product.lower().replace(" ", "")
    capacity = expected.gpu.memory_capacity.value
    is_sized = gpu.memory_bytes is None or abs(gpu.memory_bytes / capacity - 1) < _NEAR
    return ("ok" if is_named and is_sized else "fail"), text


def _power_limit(gpu: GpuFacts, expected: Expected) -> Finding | None:
    if gpu.power_limit_w is None:
        return None
    default = gpu.default_power_limit_w
    if default is not None and gpu.power_limit_w != default:
        return "warn", f"{gpu.power_limit_w:.0f} W, default {default:.0f} W"
    if expected.gpu is not None and gpu.power_limit_w < expected.gpu.package_power_limit.value:
        described = expected.gpu.package_power_limit.value
        return "warn", f"{gpu.power_limit_w:.0f} W, config/gpus/{expected.gpu.name}.yaml has {described:.0f} W"
    return "ok", f"{gpu.power_limit_w:.0f} W"


def _clocks(gpu: GpuFacts, expected: Expected) -> Finding | None:
    if gpu.clock_limit_mhz is not None and gpu.default_clock_mhz not in (None, gpu.clock_limit_mhz):
        return "warn", f"set to {gpu.clock_limit_mhz:.0f} MHz, default {gpu.default_clock_mhz:.0f} MHz"
    if gpu.max_clock_mhz is None:
        return None
    if expected.gpu is not None and gpu.max_clock_mhz < expected.gpu.max_sm_clock.value:
        described = expected.gpu.max_sm_clock.value
        return "warn", f"at most {gpu.max_clock_mhz:.0f} MHz, config/gpus/{expected.gpu.name}.yaml has {described:.0f}"
    return "ok", f"at most {gpu.max_clock_mhz:.0f} MHz"


def _slowdown(gpu: GpuFacts) -> Finding | None:
    if gpu.slowdowns is None:
        return None
    if not gpu.slowdowns:
        return "ok", "none"
    return ("fail" if any("hardware" in reason for reason in gpu.slowdowns) else "warn"), ", ".join(gpu.slowdowns)


def _memory_errors(gpu: GpuFacts) -> Finding | None:
    if gpu.has_repair_failed:
        return "fail", "rows could not be remapped"
    if gpu.is_repair_pending:
        return "fail", "a repair waits for a reset"
    if gpu.num_uncorrected:
        return "fail", f"{gpu.num_uncorrected} uncorrected errors since the driver was loaded"
    if gpu.has_ecc is False:
        return "warn", "error correction is off"
    if gpu.num_remapped:
        return "warn", f"{gpu.num_remapped} rows or pages taken out of use"
    known = (gpu.has_ecc, gpu.num_uncorrected, gpu.num_remapped)
    return None if known == (None, None, None) else ("ok", "none")


def _pcie(gpu: GpuFacts) -> Finding | None:
    if gpu.pcie_width is None or gpu.max_pcie_width is None:
        return None
    if gpu.pcie_width < gpu.max_pcie_width:
        return "fail", f"x{gpu.pcie_width} of x{gpu.max_pcie_width}"
    if gpu.pcie_generation is not None and gpu.max_pcie_generation is not None:
        text = f"generation {gpu.pcie_generation} x{gpu.pcie_width}"
        is_slow = gpu.pcie_generation < gpu.max_pcie_generation
        return ("warn", f"{text}, the GPU has {gpu.max_pcie_generation}") if is_slow else ("ok", text)
    return "ok", f"x{gpu.pcie_width}"


def _links(gpu: GpuFacts) -> Finding | None:
    if gpu.num_links is None or gpu.num_links_up is None:
        return None
    if gpu.num_links_up < gpu.num_links:
        return "fail", f"{gpu.num_links_up} of {gpu.num_links} links up"
    return "ok", f"{gpu.num_links} links up" if gpu.num_links else "no links"


def _processes(gpu: GpuFacts) -> Finding | None:
    if gpu.num_processes is None:
        return None
    if gpu.num_processes:
        return "warn", f"{gpu.num_processes} {'process' if gpu.num_processes == 1 else 'processes'}"
    return "ok", "none"


TELEMETRY = ("gpu_power_w", "gpu_energy_j", "gpu_temp_c", "sm_clock_mhz", "gpu_util")


def _telemetry(facts: NodeFacts) -> Check:
    refused = [
        (gpu.index, f"{metric} ({gpu.refused[metric]})")
        for gpu in facts.gpus
        for metric in TELEMETRY
        if metric in gpu.refused
    ]
    if not refused:
        return Check("gpu telemetry", "ok", "power, energy, temperature, clock readable", nodes=(facts.host,))
    advice = "figures will lack these; ask for access to the counters"
    return Check("gpu telemetry", "warn", by_gpu(refused), "readable", advice, (facts.host,))


def _xids(facts: NodeFacts) -> Check:
    if facts.vendor != "nvidia":
        return Check("xid errors", "skipped", "NVIDIA only", nodes=(facts.host,))
    if facts.xids is None:
        return Check("xid errors", "skipped", "the kernel's log is not readable for this user", nodes=(facts.host,))
    if not facts.xids:
        return Check("xid errors", "ok", "none since the node started, or the log was overwritten", nodes=(facts.host,))
    more = f" and {len(facts.xids) - 1} more" if len(facts.xids) > 1 else ""
    advice = "look the number up in NVIDIA's XID list; drain the node if it is one of the hardware"
    return Check("xid errors", "warn", f"{facts.xids[-1]}{more}", "none", advice, (facts.host,))
