"""Slurm parameters of a site: `~/.config/triplepoint/site.yaml`, which overrides `profiles/gangs.yaml`."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Strict, parse
from triplepoint.config.yaml_file import read_yaml

SITE_VARIABLE = "TRIPLEPOINT_SITE"
"""Environment variable with the path of a site file other than `~/.config/triplepoint/site.yaml`."""
TRACKED_GANGS = Path("profiles/gangs.yaml")
"""Slurm parameters of gangs by cluster, under those of the site file."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=0, strict=True)]


class Gang(Strict):
    """Slurm parameters of the gangs on one cluster; keys without a value are left to Slurm."""

    partition: str | None = None
    """Partition."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that every node must have."""
    exclude: tuple[str, ...] = ()
    """Nodes never to use."""
    switches: str | None = None
    """Most leaf switches a gang may span, and how long to wait for that: `1` or `1@01:00:00`."""
    exclusive: bool = True
    """Whether a gang has its nodes to itself. On shared nodes other jobs change the measurement."""
    gres: str | None = None
    """Generic resources of each node, such as `gpu:h200:8`. None: as many GPUs as the node has ranks, of any type."""
    cpus: Annotated[int, Field(gt=0, strict=True)] | None = None
    """Processors for the ranks of a node. None: all if exclusive, else one."""
    mem: str = "0"
    """Memory of each node, as for `--mem`; 0 is all of it."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before the ranks start: modules, an environment file, variables of NCCL or RCCL."""
    python: str | None = None
    """Command that runs Python on the nodes, for a container: `apptainer exec --nv image.sif python`. None: the
    current Python."""
    sbatch: dict[str, str | int | bool] = {}
    """Further options of sbatch, by their long names."""
    file_lag_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest time until a file written on one node is visible on another; NFS caches attributes for up to a minute.
    Unit: s."""
    requeues: Count = 3
    """Number of times that a launch is submitted again after preemption, or a lost or bad node."""
    retries: Count = 1
    """Number of times that a launch is submitted again after a crash, a hang or an error of a collective."""

    def job_parameters(
        self, num_gpus: int, exclude: Collection[str] = (), srun_args: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the parameters for submitit's Slurm executor.

        Args:
            num_gpus: GPUs per node; 0 for a job on processors.
            exclude: Nodes to exclude, in addition to `self.exclude`.
            srun_args: Options of srun, in addition to the site's.
        """
        additional = {"switches": self.switches, **self.sbatch}
        parameters = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "exclude": ",".join(sorted({*self.exclude, *exclude})) or None,
            "exclusive": self.exclusive or None,
            "gres": self.gres or (f"gpu:{num_gpus}" if num_gpus else None),
            "cpus_per_task": self.cpus,
            "mem": self.mem,
            "setup": list(self.setup) or None,
            "additional_parameters": {key: value for key, value in additional.items() if value is not None},
            "srun_args": [*srun_args, *([f"--cpus-per-task={self.cpus}"] if self.cpus else [])] or None,
        }
        return {key: value for key, value in parameters.items() if value is not None}


class Site(Strict):
    """The site file; every key is optional."""

    stages: dict[str, str | int] = {}
    """Resources of the CPU stages' jobs that override the profile's, with the names of Snakemake's Slurm executor:
    `slurm_partition`, `slurm_account`, `constraint`, `qos`, `runtime`, `mem_mb`."""
    room_nodes: Annotated[int, Field(gt=0, strict=True)] | None = None
    """Most nodes that launches may request together. None: the value of the profile."""
    gangs: dict[Name, dict[str, Any]] = {}
    """Keys of `Gang` by cluster that override those in `profiles/gangs.yaml`."""


def site_file() -> Path:
    """Return the path of the site file, which may not exist."""
    if named := os.environ.get(SITE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "triplepoint" / "site.yaml"


def read_site() -> Site:
    """Return the content of the site file; all defaults if there is none.

    Raises:
        UserError: If the file is not readable, a key is unknown, or a value is invalid.
    """
    path = site_file()
    if not path.is_file() and SITE_VARIABLE not in os.environ:
        return Site()
    site = parse(Site, read_yaml(path), path)
    for cluster, keys in site.gangs.items():
        parse(Gang, keys, f"{path}: gangs: {cluster}")
    return site


def gang_of(cluster: str, site: Site) -> Gang:
    """Return the Slurm parameters of gangs on a cluster: site over `profiles/gangs.yaml` over defaults.

    Raises:
        UserError: If a file is not readable, a key is unknown, or a value is invalid.
    """
    tracked = read_yaml(TRACKED_GANGS).get(cluster, {}) if TRACKED_GANGS.is_file() else {}
    parse(Gang, tracked, f"{TRACKED_GANGS}: {cluster}")
    return parse(Gang, tracked | site.gangs.get(cluster, {}), f"{site_file()}: gangs: {cluster}")
