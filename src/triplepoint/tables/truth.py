"""Tables of the ground truth of a simulated run, taken from the simulator's own timeline.

Each table describes the simulated step, warm and without jitter, like the profiled steps of the run.
"""

from triplepoint.tables.schema import Column, Table, amount, count, duration, text
from triplepoint.tables.traces import RANK

_PHASE = text("phase", "forward, backward, optimizer or other.")
_CATEGORY = text("category", "compute, comm or idle.")
_KIND = text(
    "kind",
    "For comm: collective (in a pass), gradient_sync, send_recv. For idle, the reason to wait: bubble (another stage), "
    "straggler (the slowest rank of a collective), host (a kernel launch), step_end (the update of the last stage), "
    "pause (the host, after the update). Null for compute.",
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
        duration("time_ns", "Time in a step; of concurrent work, computation counts before communication and waiting."),
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
        amount("tx_bytes", "byte", "Bytes sent.", nullable=False),
        amount("rx_bytes", "byte", "Bytes received.", nullable=False),
    ),
    null="As the column says.",
)

TRUE_CRITICAL_PATH = Table(
    "true_critical_path",
    "one row per segment of a step's critical path, by time; segments are contiguous and add up to the step",
    (
        count("stage", "Pipeline stage of the segment."),
        text("ranks", "Ranks on the path, comma separated: all equally late ones, without those that wait for them."),
        _PHASE,
        _CATEGORY,
        _KIND,
        duration("t_start_ns", "Start since the start of the step."),
        duration("duration_ns", "Duration."),
    ),
    null="As the column says.",
)
