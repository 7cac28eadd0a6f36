"""Tables of what really happened in a simulated run, from the simulator's own timeline: nothing is inferred.

Each table is of the step as it is simulated, warm and without jitter, as the profiled steps of the run are.
"""

from triplepoint.tables.schema import Column, Table, amount, count, duration, text
from triplepoint.tables.traces import RANK

_PHASE = text("phase", "forward, backward, optimizer or other.")
_CATEGORY = text("category", "compute, comm or idle.")
_KIND = text(
    "kind",
    "Of comm: collective (in a pass), gradient_sync, send_recv. Of idle: bubble (for another stage), straggler (for "
    "the slowest rank of a collective), host (for a launch), step_end (for the last stage's update), pause (after it, "
    "for the host). Null of compute.",
    True,
)

TRUE_TIMES = Table(
    "true_times",
    "one row per (rank, phase, category, kind) of a step; times add up to the step, energies to the GPU's in it",
    (
        RANK,
        _PHASE,
        _CATEGORY,
        _KIND,
        duration("time_ns", "Time in a step: computation before communication before waiting."),
        amount("gpu_energy_j", "J", "Energy in that time; null where the power of the GPU type is not known."),
    ),
    null="As the column says.",
)

TRUE_TRAFFIC = Table(
    "true_traffic",
    "one row per (node, rank, link): bytes of a step",
    (
        count("node", "Node."),
        Column("rank", "int", "1", "Rank of the GPU; null for the adapters of the node.", True, 0),
        text("link", "nvlink, xgmi or pcie of a GPU; infiniband of a node."),
        amount("tx_bytes", "byte", "Sent.", nullable=False),
        amount("rx_bytes", "byte", "Received.", nullable=False),
    ),
    null="As the column says.",
)

TRUE_CRITICAL_PATH = Table(
    "true_critical_path",
    "one row per stretch of a step's critical path, by time; they touch and add up to the step",
    (
        count("stage", "Pipeline stage it is on."),
        text("ranks", "Ranks it is on, comma separated: equal ones all; those that wait for these are not."),
        _PHASE,
        _CATEGORY,
        _KIND,
        duration("t_start_ns", "Start since the step's."),
        duration("duration_ns", "Duration."),
    ),
    null="As the column says.",
)

TRUTH = (TRUE_TIMES, TRUE_TRAFFIC, TRUE_CRITICAL_PATH)
