"""Checks of one node beside its GPUs."""

from triplepoint.doctor.check import Check, Expected
from triplepoint.doctor.facts import NodeFacts, PortFacts
from triplepoint.units import BITS_PER_BYTE, GIB, GIGA

LEAST_SHM_BYTES = GIB
"""NCCL keeps buffers of each pair of ranks in /dev/shm; containers often have 64 MiB. Source: NCCL, Troubleshooting,
"Shared memory"; the number is ours, for 8 ranks."""


def check_host(facts: NodeFacts, expected: Expected) -> list[Check]:
    """Return the checks of a node that are not about its GPUs."""
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
    nodes = (facts.host,)
    if facts.vendor == "none":
        return Check("driver", "skipped", "no GPU driver answered", nodes=nodes)
    versions = facts.versions
    found = f"{facts.vendor} {versions.get('driver', 'of unknown version')}"
    has, needs = versions.get("cuda driver"), versions.get("cuda of torch")
    if has and needs and _major(has) < _major(needs):
        advice = "update the driver, or take a torch built for its CUDA"
        return Check("driver", "fail", f"{found} for CUDA {has}", f"CUDA {needs}, as torch has", advice, nodes)
    built_for = {"nvidia": "cuda of torch", "amd": "rocm of torch"}[facts.vendor]
    if "torch" in versions and built_for not in versions:
        advice = f"install the environment of envs/ for {facts.vendor}"
        return Check("driver", "fail", f"{found}, torch {versions['torch']} is built for neither", "", advice, nodes)
    return Check("driver", "ok", f"{found}{f', CUDA {has}' if has else ''}", nodes=nodes)


def _major(version: str) -> int:
    # Within a major version, newer minor versions run on older drivers. Source: CUDA Compatibility, "Minor Version".
    return int(version.split(".")[0])


def _collective_library(facts: NodeFacts, expected: Expected) -> Check:
    nodes = (facts.host,)
    for name in ("nccl", "rccl"):
        if name in facts.versions:
            return Check("collective library", "ok", f"{name} {facts.versions[name]}", nodes=nodes)
    if "torch" not in facts.versions:
        return Check("collective library", "fail", "torch is not installed", "torch", "use envs/", nodes)
    if expected.has_gpus or facts.gpus:
        advice = "install the environment of envs/ for the GPUs"
        return Check("collective library", "fail", "torch has neither nccl nor rccl", "nccl or rccl", advice, nodes)
    return Check("collective library", "ok", "gloo", nodes=nodes)


def _network(facts: NodeFacts, expected: Expected) -> Check:
    nodes = (facts.host,)
    cluster = expected.cluster
    needed = int(cluster.nics_per_node.value) if cluster and cluster.nics_per_node else 0
    rate = cluster.nic_bandwidth.value if cluster and cluster.nic_bandwidth else 0.0
    up = [port for port in facts.ports if port.state == "ACTIVE"]
    told = f"{needed} active of {_gbit(rate)}, {expected.where}" if needed else ""
    if not facts.ports and not needed:
        return Check("network ports", "skipped", "no RDMA adapter", nodes=nodes)
    found = _ports(facts.ports) or "no RDMA adapter"
    if len(up) < needed:
        advice = "look at cables and the subnet manager, or correct nics_per_node"
        return Check("network ports", "fail", found, told, advice, nodes)
    slow = [port.name for port in up if port.bytes_per_s is not None and port.bytes_per_s < rate]
    if len(up) - len(slow) < needed:
        advice = "a link trained at a lower rate: look at cables and switch ports, or correct nic_bandwidth"
        return Check("network ports", "fail", found, told, advice, nodes)
    if len(up) > needed > 0:
        advice = "correct nics_per_node, or name those to use in NCCL_IB_HCA"
        return Check("network ports", "warn", found, told, advice, nodes)
    return Check("network ports", "ok", found, told, nodes=nodes)


def _ports(ports: tuple[PortFacts, ...]) -> str:
    texts: dict[str, list[str]] = {}
    for port in ports:
        rate = f" {_gbit(port.bytes_per_s)}" if port.bytes_per_s else ""
        texts.setdefault(f"{port.link_layer} {port.state}{rate}", []).append(port.name)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * BITS_PER_BYTE / GIGA:.0f} Gb/s"


def _network_counters(facts: NodeFacts) -> Check:
    nodes = (facts.host,)
    if not facts.ports:
        return Check("network counters", "skipped", "no RDMA adapter", nodes=nodes)
    refused = [port.counters for port in facts.ports if port.counters]
    if refused:
        return Check("network counters", "warn", refused[0], "readable", "traffic of the network will be absent", nodes)
    return Check("network counters", "ok", "readable", nodes=nodes)


def _host_telemetry(facts: NodeFacts) -> Check:
    nodes = (facts.host,)
    refused = "; ".join(f"{name}: {reason}" for name, reason in facts.telemetry.items() if reason)
    if refused:
        advice = "figures will lack these; RAPL needs root or `chmod a+r energy_uj`"
        return Check("host telemetry", "warn", refused, "readable", advice, nodes)
    return Check("host telemetry", "ok", f"{', '.join(facts.telemetry)} readable", nodes=nodes)


def _shared_memory(facts: NodeFacts) -> Check:
    nodes = (facts.host,)
    if facts.shm_bytes is None:
        return Check("shared memory", "fail", "no /dev/shm", f"{LEAST_SHM_BYTES / GIB:.0f} GiB", "mount it", nodes)
    found = f"/dev/shm has {facts.shm_bytes / GIB:.1f} GiB"
    if facts.shm_bytes < LEAST_SHM_BYTES:
        advice = "start the container with more, such as --shm-size=16g or --ipc=host"
        return Check("shared memory", "warn", found, f"{LEAST_SHM_BYTES / GIB:.0f} GiB", advice, nodes)
    return Check("shared memory", "ok", found, nodes=nodes)


def _locked_memory(facts: NodeFacts) -> Check:
    nodes = (facts.host,)
    if not facts.ports:
        return Check("locked memory", "skipped", "no RDMA adapter", nodes=nodes)
    if facts.memlock_bytes is None:
        return Check("locked memory", "ok", "no limit", nodes=nodes)
    advice = "set `ulimit -l unlimited`, on Slurm PropagateResourceLimitsExcept=MEMLOCK"
    found = f"limit of {facts.memlock_bytes / GIB:.2f} GiB"
    return Check("locked memory", "warn", found, "no limit, for RDMA", advice, nodes)
