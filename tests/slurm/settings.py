"""Configuration files of the test cluster: 4 nodes with 8 fake H200 and 2 nodes with 8 fake MI250."""

import socket
from dataclasses import dataclass
from pathlib import Path

CONTROLLER_PORT = 16817
ACCOUNTING_PORT = 16819
DATABASE_PORT = 16820
FILES = ("slurm.conf", "gres.conf", "topology.conf", "cgroup.conf", "slurmdbd.conf")
CPUS_PER_NODE = 32
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class NodeSpec:
    """A node: a slurmd with its own name and port on this machine."""

    name: str
    port: int
    gpu: str


NODES = (
    *(NodeSpec(f"h200-{i}", 17000 + i, "h200") for i in range(1, 5)),
    *(NodeSpec(f"mi250-{i}", 17100 + i, "mi250") for i in range(1, 3)),
)


def slurm_conf(root: Path, first_job_id: int) -> str:
    """Return the content of slurm.conf.

    Args:
        root: Folder of the cluster.
        first_job_id: Number of the first job. It has to differ after each start of an empty cluster, because submitit
            names logs and results by job number.
    """
    host = socket.gethostname().partition(".")[0]
    socket_file = f"{root}/run/munge.sock"
    nodes = "\n".join(
        f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={node.port}"
        f" Gres=gpu:{node.gpu}:{GPUS_PER_NODE} Feature={node.gpu.upper()}"
        for node in NODES
    )
    return f"""\
ClusterName=triplepoint
FirstJobId={first_job_id}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket_file},cred_expire=10
CredType=cred/munge
SlurmctldPort={CONTROLLER_PORT}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
# No cgroups here, so nothing is bound or confined; memory is watched by polling instead.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
# Believe what is said below of processors and memory: the nodes claim more than this machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
TopologyPlugin=topology/tree
# Faults are noticed in seconds, where a real cluster takes minutes.
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=12
MessageTimeout=10
KillWait=5
InactiveLimit=30
MinJobAge=300
JobRequeue=1
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ACCOUNTING_PORT}
AccountingStoragePass={socket_file}
AccountingStorageTRES=gres/gpu
NodeName=DEFAULT Sockets=2 CoresPerSocket={CPUS_PER_NODE // 2} ThreadsPerCore=1 CPUs={CPUS_PER_NODE} RealMemory=1000000
{nodes}
PartitionName=DEFAULT MaxTime=1-00:00:00 DefaultTime=01:00:00 DefMemPerCPU=1000 State=UP
PartitionName=h200 Nodes=h200-[1-4] Default=YES
PartitionName=mi250 Nodes=mi250-[1-2]
PartitionName=urgent Nodes=h200-[1-4] PriorityTier=10
"""


def gres_conf(root: Path) -> str:
    """Return the content of gres.conf. Slurm only accepts GPUs with device files, which are links to /dev/null here."""
    lines = [
        f"NodeName={node.name} Name=gpu Type={node.gpu} File={root}/dev/gpu[0-{GPUS_PER_NODE - 1}]" for node in NODES
    ]
    return "\n".join(["AutoDetect=off", *lines, ""])


TOPOLOGY_CONF = """\
SwitchName=leaf1 Nodes=h200-[1-2]
SwitchName=leaf2 Nodes=h200-[3-4]
SwitchName=leaf3 Nodes=mi250-[1-2]
SwitchName=spine Switches=leaf[1-3]
"""

CGROUP_CONF = "CgroupAutomount=no\n"


def slurmdbd_conf(root: Path) -> str:
    """Return the content of slurmdbd.conf, a file that only slurmdbd may be able to read."""
    return f"""\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ACCOUNTING_PORT}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.sock
PidFile={root}/run/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={DATABASE_PORT}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CommitDelay=1
"""
