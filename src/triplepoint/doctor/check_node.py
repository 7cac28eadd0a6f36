"""Checks of one node: its GPUs, driver, network ports, sensors and memory limits.

`python -m triplepoint.doctor.check_node OUT DEVICE LIMITS` runs the short check of its node, before each launch. It
only reads: it needs no torch and no other nodes, and measures no collectives. Its findings are recorded with the run.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from triplepoint.config.gpu_names import is_named
from triplepoint.doctor.check import Check, Expected, GpuFacts, NodeFacts, PortFacts, Status, by_gpu, worst
from triplepoint.doctor.node import Sources, read_node
from triplepoint.doctor.probe import VENDORS
from triplepoint.files import write_json
from triplepoint.units import BITS_PER_BYTE, GIB, GIGA

Finding = tuple[Status, str]
"""Result of a check on one GPU: status and text."""

_MEMORY_TOLERANCE = 0.06
"""Relative difference between memory of the driver and of the product, as error correction and the driver keep some."""


LEAST_SHM_BYTES = GIB
"""Least size of /dev/shm, where NCCL keeps buffers of each pair of ranks. Containers often have 64 MiB. Source: NCCL,
Troubleshooting, "Shared memory"; the number is an assumption for 8 ranks."""


def check_node(facts: NodeFacts, expected: Expected) -> list[Check]:
    """Return the checks of a node."""
    checks = [*check_gpus(facts, expected), *check_host(facts, expected)]
    return [replace(check, nodes=(facts.host,)) for check in checks]


def check_gpus(facts: NodeFacts, expected: Expected) -> list[Check]:
    """Return the checks of a node's GPUs; without GPUs, a single one that is skipped or failed."""
    if not facts.gpus:
        return [_no_gpus(facts, expected)]
    return [
        _count(facts, expected),
        _all_gpus(
            facts, "gpu type", lambda gpu: _type(gpu, expected), _expected_type(expected), "use the right partition"
        ),
        _all_gpus(
            facts,
            "power limit",
            lambda gpu: _power_limit(gpu, expected),
            "the default",
            "set it again: nvidia-smi -pl, amd-smi",
        ),
        _all_gpus(
            facts, "clocks", lambda gpu: _clocks(gpu, expected), "the default", "reset clocks: nvidia-smi -rac -rgc"
        ),
        _all_gpus(facts, "slowdown", _slowdown, "none", "look at cooling and power supply of the node"),
        _all_gpus(facts, "memory errors", _memory_errors, "none", "drain the node and reset or replace the GPU"),
        _all_gpus(facts, "pcie", _pcie, "full width and generation", "reseat the GPU or its riser; drain the node"),
        _all_gpus(facts, "nvlink/xgmi", _links, "all links up", "drain the node; look at its fabric manager"),
        _all_gpus(facts, "other work", _processes, "no process", "ask for the node exclusively"),
        _telemetry(facts),
        _xids(facts),
    ]


def _no_gpus(facts: NodeFacts, expected: Expected) -> Check:
    if expected.has_gpus and expected.cluster:
        advice = "is this the right partition, and the environment of envs/?"
        number = f"{expected.cluster.gpus_per_node} of {expected.cluster.gpu}"
        return Check("gpus", "fail", facts.no_gpus_because, number, advice)
    return Check("gpus", "skipped", facts.no_gpus_because)


def _all_gpus(
    facts: NodeFacts, name: str, judge: Callable[[GpuFacts], Finding | None], expected: str, advice: str
) -> Check:
    """Return one check over all GPUs: the most severe finding, with its GPUs.

    Args:
        facts: Facts of the node.
        name: Name of the check.
        judge: Returns the finding on a GPU; None where its driver gives no value.
        expected: Expected state.
        advice: Remedy.
    """
    findings = [(gpu.index, finding) for gpu in facts.gpus if (finding := judge(gpu)) is not None]
    if not findings:
        return Check(name, "skipped", _refusal(facts.gpus))
    status = worst(status for _, (status, _) in findings)
    text = by_gpu([(index, text) for index, (gpu_status, text) in findings if gpu_status == status])
    return Check(name, status, text) if status == "ok" else Check(name, status, text, expected, advice)


def _refusal(gpus: Sequence[GpuFacts]) -> str:
    """Return the reason that no GPU gave a value."""
    lost = [(gpu.index, gpu.refused["gpu"]) for gpu in gpus if "gpu" in gpu.refused]
    return by_gpu(lost) if lost else "the driver gives no value"


def _count(facts: NodeFacts, expected: Expected) -> Check:
    lost = [(gpu.index, f"lost ({gpu.refused['gpu']})") for gpu in facts.gpus if "gpu" in gpu.refused]
    found = f"{len(facts.gpus)}" + (f"; {by_gpu(lost)}" if lost else "")
    num_expected = expected.cluster.gpus_per_node if expected.cluster else len(facts.gpus)
    described = f"{num_expected}, {expected.where}" if expected.cluster else ""
    if lost or len(facts.gpus) != num_expected:
        return Check("gpu count", "fail", found, described, "drain the node, or correct gpus_per_node")
    in_torch = facts.num_torch_devices
    if in_torch != num_expected:
        problem = "torch is not installed" if in_torch is None else f"the driver shows {found}, torch sees {in_torch}"
        advice = "install the environment of envs/; unset CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"
        return Check("gpu count", "fail" if expected.cluster else "warn", problem, described, advice)
    return Check("gpu count", "ok", found, described)


def _expected_type(expected: Expected) -> str:
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
    capacity = expected.gpu.memory_capacity.value
    has_memory = gpu.memory_bytes is None or abs(gpu.memory_bytes / capacity - 1) < _MEMORY_TOLERANCE
    return ("ok" if is_named(gpu.product, expected.gpu) and has_memory else "fail"), text


def _power_limit(gpu: GpuFacts, expected: Expected) -> Finding | None:
    if gpu.power_limit_w is None:
        return None
    asked_w = expected.limits_w.get(gpu.index)
    if asked_w is not None:
        is_set = abs(gpu.power_limit_w - asked_w) < 1.0
        return "ok" if is_set else "fail", f"{gpu.power_limit_w:.0f} W, the run is to have {asked_w:.0f} W"
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
"""Metrics of the sampler that the check tries to read."""


def _telemetry(facts: NodeFacts) -> Check:
    refused = [
        (gpu.index, f"{metric} ({gpu.refused[metric]})")
        for gpu in facts.gpus
        for metric in TELEMETRY
        if metric in gpu.refused
    ]
    if not refused:
        return Check("gpu telemetry", "ok", "power, energy, temperature, clock readable")
    advice = "figures will lack these; ask for access to the counters"
    return Check("gpu telemetry", "warn", by_gpu(refused), "readable", advice)


def _xids(facts: NodeFacts) -> Check:
    if facts.vendor != "nvidia":
        return Check("xid errors", "skipped", "NVIDIA only")
    if facts.xids is None:
        return Check("xid errors", "skipped", "the kernel's log is not readable for this user")
    if not facts.xids:
        return Check("xid errors", "ok", "none since the node started, or the log was overwritten")
    more = f" and {len(facts.xids) - 1} more" if len(facts.xids) > 1 else ""
    advice = "look the number up in NVIDIA's XID list; drain the node if it is one of the hardware"
    return Check("xid errors", "warn", f"{facts.xids[-1]}{more}", "none", advice)


def check_host(facts: NodeFacts, expected: Expected) -> list[Check]:
    """Return the checks of a node's driver, libraries, network ports, sensors and memory limits."""
    return [
        _driver(facts),
        _collective_library(facts, expected),
        _network(facts, expected),
        _network_counters(facts),
        _host_telemetry(facts),
        _shared_memory(facts),
        _locked_memory(facts),
    ]


def _driver(facts: NodeFacts) -> Check:
    if facts.vendor == "none":
        return Check("driver", "skipped", "no GPU driver answered")
    versions = facts.versions
    found = f"{facts.vendor} {versions.get('driver', 'of unknown version')}"
    cuda, torch_cuda = versions.get("cuda driver"), versions.get("cuda of torch")
    if cuda and torch_cuda and _major(cuda) < _major(torch_cuda):
        advice = "update the driver, or take a torch built for its CUDA"
        return Check("driver", "fail", f"{found} for CUDA {cuda}", f"CUDA {torch_cuda}, as torch has", advice)
    built_for = {"nvidia": "cuda of torch", "amd": "rocm of torch"}[facts.vendor]
    if "torch" in versions and built_for not in versions:
        advice = f"install the environment of envs/ for {facts.vendor}"
        return Check("driver", "fail", f"{found}, torch {versions['torch']} is built for neither", "", advice)
    return Check("driver", "ok", f"{found}{f', CUDA {cuda}' if cuda else ''}")


def _major(version: str) -> int:
    # Newer minor versions of CUDA run on older drivers of the same major version. Source: CUDA Compatibility,
    # "Minor Version".
    return int(version.split(".")[0])


def _collective_library(facts: NodeFacts, expected: Expected) -> Check:
    for name in ("nccl", "rccl"):
        if name in facts.versions:
            return Check("collective library", "ok", f"{name} {facts.versions[name]}")
    if "torch" not in facts.versions:
        return Check("collective library", "fail", "torch is not installed", "torch", "use envs/")
    if expected.has_gpus or facts.gpus:
        advice = "install the environment of envs/ for the GPUs"
        return Check("collective library", "fail", "torch has neither nccl nor rccl", "nccl or rccl", advice)
    return Check("collective library", "ok", "gloo")


def _network(facts: NodeFacts, expected: Expected) -> Check:
    cluster = expected.cluster
    needed = int(cluster.nics_per_node.value) if cluster and cluster.nics_per_node else 0
    rate = cluster.nic_bandwidth.value if cluster and cluster.nic_bandwidth else 0.0
    active = [port for port in facts.ports if port.state == "ACTIVE"]
    described = f"{needed} active of {_gbit(rate)}, {expected.where}" if needed else ""
    if not facts.ports and not needed:
        return Check("network ports", "skipped", "no RDMA adapter")
    found = _ports(facts.ports) or "no RDMA adapter"
    if len(active) < needed:
        advice = "look at cables and the subnet manager, or correct nics_per_node"
        return Check("network ports", "fail", found, described, advice)
    num_slow = sum(port.bytes_per_s is not None and port.bytes_per_s < rate for port in active)
    if len(active) - num_slow < needed:
        advice = "a link trained at a lower rate: look at cables and switch ports, or correct nic_bandwidth"
        return Check("network ports", "fail", found, described, advice)
    if len(active) > needed > 0:
        advice = "correct nics_per_node, or name those to use in NCCL_IB_HCA"
        return Check("network ports", "warn", found, described, advice)
    return Check("network ports", "ok", found, described)


def _ports(ports: tuple[PortFacts, ...]) -> str:
    texts: dict[str, list[str]] = {}
    for port in ports:
        rate = f" {_gbit(port.bytes_per_s)}" if port.bytes_per_s else ""
        texts.setdefault(f"{port.link_layer} {port.state}{rate}", []).append(port.name)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * BITS_PER_BYTE / GIGA:.0f} Gb/s"


def _network_counters(facts: NodeFacts) -> Check:
    if not facts.ports:
        return Check("network counters", "skipped", "no RDMA adapter")
    refused = [port.counters for port in facts.ports if port.counters]
    if refused:
        return Check("network counters", "warn", refused[0], "readable", "traffic of the network will be absent")
    return Check("network counters", "ok", "readable")


def _host_telemetry(facts: NodeFacts) -> Check:
    refused = "; ".join(f"{name}: {reason}" for name, reason in facts.telemetry.items() if reason)
    if refused:
        advice = "figures will lack these; RAPL needs root or `chmod a+r energy_uj`"
        return Check("host telemetry", "warn", refused, "readable", advice)
    return Check("host telemetry", "ok", f"{', '.join(facts.telemetry)} readable")


def _shared_memory(facts: NodeFacts) -> Check:
    if facts.shm_bytes is None:
        return Check("shared memory", "fail", "no /dev/shm", f"{LEAST_SHM_BYTES / GIB:.0f} GiB", "mount it")
    found = f"/dev/shm has {facts.shm_bytes / GIB:.1f} GiB"
    if facts.shm_bytes < LEAST_SHM_BYTES:
        advice = "start the container with more, such as --shm-size=16g or --ipc=host"
        return Check("shared memory", "warn", found, f"{LEAST_SHM_BYTES / GIB:.0f} GiB", advice)
    return Check("shared memory", "ok", found)


def _locked_memory(facts: NodeFacts) -> Check:
    if not facts.ports:
        return Check("locked memory", "skipped", "no RDMA adapter")
    if facts.memlock_bytes is None:
        return Check("locked memory", "ok", "no limit")
    advice = "set `ulimit -l unlimited`, on Slurm PropagateResourceLimitsExcept=MEMLOCK"
    found = f"limit of {facts.memlock_bytes / GIB:.2f} GiB"
    return Check("locked memory", "warn", found, "no limit, for RDMA", advice)


_NEED_TORCH = ("gpu count", "driver", "collective library")


def check_briefly(
    device: str, sources: Sources | None = None, limits_w: Mapping[int, float] = MappingProxyType({})
) -> list[Check]:
    """Return the checks of this node that need no torch and no measurement.

    Args:
        device: Kind of device, cpu, cuda or rocm, which decides whose GPUs to look for.
        sources: Files and libraries to read from.
        limits_w: Power limits by GPU that the run asks for. Unit: W.
    """
    facts = read_node(0, VENDORS[device], sources, with_torch=False)
    checks = check_node(facts, Expected(limits_w=limits_w))
    return [check for check in checks if check.status != "skipped" and check.name not in _NEED_TORCH]


def main(out: Path, device: str, limits_w: str = "{}") -> None:
    """Write name, status and finding of each check.

    Args:
        out: File to write.
        device: Kind of device: cpu, cuda or rocm.
        limits_w: Power limits by GPU that the run asks for, as JSON. Unit: W.
    """
    asked_w = {int(gpu): limit_w for gpu, limit_w in json.loads(limits_w).items()}
    keys = ("name", "status", "found")
    write_json(out, [{key: asdict(check)[key] for key in keys} for check in check_briefly(device, limits_w=asked_w)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
