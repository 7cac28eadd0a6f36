"""Check of the configuration files of GPU types and clusters, and of what a missing file costs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.doctor.probe import VENDORS
from triplepoint.errors import UserError, nearest
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import fabric_of
from triplepoint.simulate.heat.nodes import airflow_of, is_known, node_power_of, power_of
from triplepoint.simulate.heat.parameters import read_heat
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.power.parameters import read_power

# Notes on files.
INFERRED = "of a relative, by peaks and memory bandwidth: intervals are wider"
NO_KERNELS = "nothing is simulated or predicted"
NO_POWER = "power, energy, temperature and clock columns stay empty"
NO_CALIBRATION = "no published run on it: step times take the factor of other GPU types"
NO_NETWORK = "no nics_per_node or nic_bandwidth: points on several nodes are not simulated"
NO_GPU = "cpu: runs are launched, not simulated"


@dataclass(frozen=True)
class FileCheck:
    """State of one file of a GPU type or a cluster.

    Attributes:
        name: GPU type or cluster, such as `gpu h200`.
        part: Part of the description that the file holds.
        file: Path of the file, or of the file that should name it.
        status: ok; missing, which is allowed at the cost in `note`; broken, which makes a command fail with `note`.
        note: Cost or error; empty where there is none.
    """

    name: str
    part: str
    file: str
    status: Literal["ok", "missing", "broken"]
    note: str = ""


def check_files(names: Sequence[str], config: Path) -> list[FileCheck]:
    """Return the state of the files of GPU types and clusters.

    Args:
        names: Names of GPU types and clusters; empty for all.
        config: Folder of the configuration.

    Raises:
        UserError: If a name is neither a GPU type nor a cluster, or there are no files.
    """
    gpus, clusters = ([path.stem for path in sorted((config / kind).glob("*.yaml"))] for kind in ("gpus", "clusters"))
    if not gpus + clusters:
        raise UserError(
            f"{config}: no GPU types and no clusters in it; name Triplepoint's folder of configuration with --config"
        )
    for name in names:
        if name not in gpus + clusters:
            raise UserError(f"{name}: neither a GPU type nor a cluster of {config}{nearest(name, gpus + clusters)}")
    catalogue = Catalogue(config)
    checks: list[FileCheck] = []
    for name in gpus:
        checks += _check_gpu(name, catalogue) if not names or name in names else ()
    for name in clusters:
        checks += _check_cluster(name, catalogue) if not names or name in names else ()
    return checks


def as_table(checks: Sequence[FileCheck]) -> str:
    """Return a line of text for each file, and a summary."""
    lines = []
    for check in checks:
        note = f": {check.note}" if check.note else ""
        lines.append(f"{check.status:<8} {check.name:<18} {check.part:<12} {check.file}{note}")
    counts = [f"{sum(check.status == status for check in checks)} {status}" for status in ("ok", "missing", "broken")]
    return "\n".join([*lines, f"{len(checks)} files: {', '.join(counts)}"])


def gaps(names: Sequence[str], config: Path) -> list[str]:
    """Return a line of text on the missing files of each GPU type and cluster, with their cost.

    Args:
        names: Names of GPU types and clusters.
        config: Folder of the configuration.

    Raises:
        UserError: If a name is neither a GPU type nor a cluster, or there are no files.
    """
    checks = check_files(names, config) if names else []
    parts: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        # Missing conditions of a cluster repeat the missing files of its GPU type.
        if check.status == "missing" and check.part != "conditions":
            parts.setdefault((check.name, check.note.removeprefix("names no chassis: ")), []).append(check.part)
    return [f"{name}: {', '.join(missing)} unknown: {_cost(note)}" for (name, note), missing in parts.items()]


def _cost(note: str) -> str:
    """Return the cost of a missing file, and what works without it."""
    remarks = {
        NO_POWER: " where nothing is measured; time and memory are predicted",
        NO_KERNELS: "; runs on it can be launched and measured",
    }
    return note + remarks.get(note, "")


def _check_gpu(name: str, catalogue: Catalogue) -> Iterator[FileCheck]:
    config, title = catalogue.folder, f"gpu {name}"
    file = config / "gpus" / f"{name}.yaml"
    yield (check := _try(title, "gpu", file, lambda: catalogue.gpu(name)))
    if check.status == "broken":
        return
    gpu = catalogue.gpu(name)
    link = config / "collectives" / "links" / f"{gpu.scale_up_link}.yaml"
    yield _try(title, "link", link, lambda: load_link(gpu.scale_up_link, config))
    yield _check_kernels(title, gpu, config)
    yield _optional(title, "power", config / "power" / f"{name}.yaml", lambda: read_power(name, config), NO_POWER)
    yield _optional(title, "heat", config / "heat" / f"{name}.yaml", lambda: _check_heat(gpu, config), NO_POWER)
    if gpu.chassis is None:
        yield FileCheck(title, "chassis", str(file), "missing", f"names no chassis: {NO_POWER}")
    else:
        yield from _check_chassis(title, gpu, gpu.chassis, config)
    fitted = config / "calibration" / "fitted.yaml"
    check = _try(title, "calibration", fitted, lambda: Calibration.load(config))
    if check.status == "ok":
        calibrated = {factor.gpu for factor in Calibration.load(config).fitted.gpus}
        if not calibrated & {name, gpu.kernels_of}:
            check = FileCheck(title, "calibration", str(fitted), "missing", NO_CALIBRATION)
    yield check


def _check_kernels(title: str, gpu: GpuConfig, config: Path) -> FileCheck:
    own_file = config / "kernels" / f"{gpu.name}.yaml"
    file = own_file if own_file.is_file() or gpu.kernels is None else own_file.with_stem(gpu.kernels.of)
    check = _optional(title, "kernels", file, lambda: KernelModel.load(gpu, config), NO_KERNELS)
    return replace(check, note=INFERRED) if check.status == "ok" and file != own_file else check


def _check_chassis(title: str, gpu: GpuConfig, chassis: str, config: Path) -> Iterator[FileCheck]:
    airflow = config / "heat" / "airflow" / f"{chassis}.yaml"
    yield _try(title, "airflow", airflow, lambda: airflow_of(None, gpu, 1, config))
    yield _try(title, "node power", config / "power" / "nodes" / f"{chassis}.yaml", lambda: node_power_of(gpu, config))


def _check_cluster(name: str, catalogue: Catalogue) -> Iterator[FileCheck]:
    config, title = catalogue.folder, f"cluster {name}"
    file = config / "clusters" / f"{name}.yaml"
    yield (check := _try(title, "cluster", file, lambda: catalogue.gpu_of(catalogue.cluster(name))))
    if check.status == "broken":
        return
    cluster = catalogue.cluster(name)
    gpu = catalogue.gpu_of(cluster)
    if gpu is None:
        yield FileCheck(title, "gpu", str(file), "ok", NO_GPU)
        return
    if gpu.vendor not in VENDORS[cluster.device]:
        note = f"device is {cluster.device}, {gpu.name} is of {gpu.vendor}"
        yield FileCheck(title, "device", str(file), "broken", note)
    if cluster.num_nodes > 1 and (cluster.nics_per_node is None or cluster.nic_bandwidth is None):
        yield FileCheck(title, "network", str(file), "missing", NO_NETWORK)
    else:
        yield _try(title, "network", file, lambda: fabric_of(cluster, gpu, config))
    if not is_known(gpu, config):
        yield FileCheck(title, "conditions", str(file), "missing", f"gpu {gpu.name} is incomplete: {NO_POWER}")
        return
    if cluster.chassis:
        yield from _check_chassis(title, gpu, cluster.chassis, config)
    yield _try(title, "conditions", file, lambda: _check_conditions(cluster, gpu, config))


def _check_heat(gpu: GpuConfig, config: Path) -> None:
    """Check cooling and sensors of a GPU type. Raises `UserError` if the file is invalid."""
    die = read_heat(gpu.name, config).sensors.power_die
    if die >= gpu.gpus_per_package:
        raise UserError(f"sensors.power_die is {die}, gpus_per_package of {gpu.name} is {gpu.gpus_per_package}")


def _check_conditions(cluster: ClusterConfig, gpu: GpuConfig, config: Path) -> None:
    """Check the conditions of a cluster. Raises `UserError` if its GPU type does not allow them."""
    conditions = cluster.conditions
    airflow_of(conditions.airflow, gpu, cluster.gpus_per_node, config)
    power_of(conditions, gpu, config, cluster.name)
    read_heat(gpu.name, config).cooling_by(conditions.coolant)


def _optional(title: str, part: str, file: Path, read: Callable[[], object], cost: str) -> FileCheck:
    """Return the state of a file that may be missing at a cost."""
    return _try(title, part, file, read) if file.exists() else FileCheck(title, part, str(file), "missing", cost)


def _try(title: str, part: str, file: Path, read: Callable[[], object]) -> FileCheck:
    """Return the state of a file, which is broken if `read` raises `UserError`."""
    try:
        read()
    except UserError as error:
        return FileCheck(title, part, str(file), "broken", str(error).removeprefix(f"{file}: "))
    return FileCheck(title, part, str(file), "ok")
