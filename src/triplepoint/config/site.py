"""What a site's Slurm wants to be told: `~/.config/triplepoint/site.yaml`, over `profiles/gangs.yaml`."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Strict, parse
from triplepoint.config.yaml_file import read_yaml

SITE_VARIABLE = "TRIPLEPOINT_SITE"
"""Environment variable that names another file than `~/.config/triplepoint/site.yaml`."""
TRACKED_GANGS = Path("profiles/gangs.yaml")
"""How gangs are asked for where the site's file says nothing, by cluster."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=0, strict=True)]


class Gang(Strict):
    """How gangs on one cluster are asked for; keys without a value are left to Slurm."""

    partition: str | None = None
    """Partition."""
    account: str | None = None
    """Account that pays."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features every node must have."""
    exclude: tuple[str, ...] = ()
    """Nodes never to be used."""
    switches: str | None = None
    """Most leaf switches a gang may span, and how long to wait for that: `1` or `1@01:00:00`."""
    exclusive: bool = True
    """Whether a gang has its nodes to itself. A measurement beside someone else's job measures that too."""
    gres: str | None = None
    """Generic resources of each node, such as `gpu:h200:8`. None: as many GPUs as the node has ranks, of any type."""
    cpus: Annotated[int, Field(gt=0, strict=True)] | None = None
    """Processors for the ranks of a node. None: all where exclusive, else one."""
    mem: str = "0"
    """Memory of each node, as `--mem` takes it; 0 is all of it."""
    setup: tuple[str, ...] = ()
    """Shell lines before the ranks start: modules, an environment file, variables of NCCL or RCCL."""
    python: str | None = None
    """Command that stands for Python on the nodes, for a container: `apptainer exec --nv image.sif python`. None: the
    Python that runs this."""
    sbatch: dict[str, str | int | bool] = {}
    """Any further option of sbatch, by its long name."""
    file_lag_s: Annotated[float, Field(gt=0)] = 60.0
    """How long a file written on one node may take to be seen from another; NFS keeps attributes for up to a minute.
    Unit: s."""
    requeues: Count = 3
    """How often a launch is submitted again after preemption, a lost or a bad node."""
    retries: Count = 1
    """How often a launch is submitted again after a crash, a hang or an error of a collective."""

    def job_parameters(
        self, num_gpus: int, exclude: Collection[str] = (), srun_args: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return what submitit's Slurm executor is asked for, without what is left to Slurm.

        Args:
            num_gpus: GPUs of a node; 0 for a job on processors.
            exclude: Nodes not to use, besides those never to be used.
            srun_args: Options of srun besides the site's.
        """
        further = {"switches": self.switches, **self.sbatch}
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
            "additional_parameters": {key: value for key, value in further.items() if value is not None},
            "srun_args": [*srun_args, *([f"--cpus-per-task={self.cpus}"] if self.cpus else [])] or None,
        }
        return {key: value for key, value in parameters.items() if value is not None}


class Site(Strict):
    """The file of a site; every key may be left out."""

    stages: dict[str, str | int] = {}
    """Resources of the CPU stages' jobs in place of the profile's, as Snakemake's Slurm executor names them:
    `slurm_partition`, `slurm_account`, `constraint`, `qos`, `runtime`, `mem_mb`."""
    room_nodes: Annotated[int, Field(gt=0, strict=True)] | None = None
    """Nodes that launches may ask for at once. None: what the profile says."""
    gangs: dict[Name, dict[str, Any]] = {}
    """Keys of `Gang` in place of those in `profiles/gangs.yaml`, by cluster."""


def site_file() -> Path:
    """Return where the site's file is, or would be."""
    if named := os.environ.get(SITE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "triplepoint" / "site.yaml"


def read_site() -> Site:
    """Return what the site's file says; all defaults where there is none.

    Raises:
        UserError: If the file is not readable, a key is unknown, or a value is wrong.
    """
    path = site_file()
    if not path.is_file() and SITE_VARIABLE not in os.environ:
        return Site()
    site = parse(Site, read_yaml(path), path)
    for cluster, keys in site.gangs.items():
        parse(Gang, keys, f"{path}: gangs: {cluster}")
    return site


def gang_of(cluster: str, site: Site) -> Gang:
    """Return how gangs on `cluster` are asked for: defaults, over them `profiles/gangs.yaml`, over that the site.

    Raises:
        UserError: If a file is not readable, a key is unknown, or a value is wrong.
    """
    tracked = read_yaml(TRACKED_GANGS).get(cluster, {}) if TRACKED_GANGS.is_file() else {}
    parse(Gang, tracked, f"{TRACKED_GANGS}: {cluster}")
    return parse(Gang, tracked | site.gangs.get(cluster, {}), f"{site_file()}: gangs: {cluster}")
