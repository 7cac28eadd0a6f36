"""Short measurements of collectives and kernels, as rows of the tables that the simulator is calibrated with.

Each rank runs `python -m triplepoint.doctor.measure FOLDER cpu|gpu SECONDS LARGEST`. Collectives are timed over sizes,
with all groups of one size at once, as in a training step. GEMMs and copies are timed on each device, to detect slow
devices.
"""

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from triplepoint.config.base import Strict
from triplepoint.files import write_text
from triplepoint.processes import die_with_parent
from triplepoint.units import KIB, MIB

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
SIZES = tuple(KIB << (2 * power) for power in range(10))
"""Sizes from 1 KiB to 256 MiB, each four times the previous one. Unit: byte."""
LARGEST = 256 * MIB
"""Largest size. Unit: byte."""
ELEMENT_BYTES = 4
MOST_RUNS = 200
"""Most repetitions of one size."""
TARGET_S = 0.05
"""Time to repeat one size: long against the resolution of the clock, short against the budget. Unit: s."""


class CollectiveRow(Strict):
    """One collective of one group, timed by its slowest rank."""

    level: str
    """`node` for a group within a node, else `network`."""
    kind: str
    """Kind of the collective."""
    num_gpus: int
    """Size of the group."""
    num_bytes: int
    """Size of the collective as in nccl-tests. Unit: byte."""
    time_s: float
    """Time of one run. Unit: s."""
    host: str
    """Host of the group's first rank."""


class KernelRow(Strict):
    """One kernel on one device."""

    cls: str
    """Class of the kernel: gemm or copy."""
    precision: str
    """Number format."""
    shape: tuple[int, ...]
    """m, n, k of a GEMM; empty for a copy."""
    flops: float
    """Arithmetic of one run. Unit: FLOP."""
    num_bytes: float
    """Bytes read and written, each operand once. Unit: byte."""
    time_s: float
    """Time of one run. Unit: s."""
    host: str
    """Host."""
    device: int
    """Number of the device on its host."""


class RankRows(Strict):
    """Measurements of one rank: the content of `rank<R>.json`."""

    rank: int
    """The rank."""
    collectives: tuple[CollectiveRow, ...]
    """Collectives of the groups whose first rank it is."""
    kernels: tuple[KernelRow, ...]
    """Kernels on its device."""


@dataclass(frozen=True)
class Team:
    """The process group of a rank among the groups of one size.

    Attributes:
        group: Process group.
        ranks: Ranks of the group.
        level: `node` or `network`.
        device: Device of the buffers.
        wait: Waits for the device.
    """

    group: Any
    ranks: tuple[int, ...]
    level: str
    device: Any
    wait: Callable[[], None]


def group_sizes(world_size: int, ranks_per_node: int) -> list[int]:
    """Return the group sizes to measure, which divide the world: two GPUs, a node, two nodes and all nodes."""
    num_nodes = world_size // ranks_per_node
    sizes = {2, ranks_per_node, 2 * ranks_per_node, world_size} if num_nodes > 1 else {2, world_size}
    return sorted(size for size in sizes if size > 1 and world_size % size == 0)


def make_teams(world_size: int, ranks_per_node: int, device: Any, wait: Callable[[], None]) -> list[Team]:
    """Create the process groups of every size and return those of this rank; all ranks must call this together."""
    import torch.distributed as dist

    rank, teams = dist.get_rank(), []
    for size in group_sizes(world_size, ranks_per_node):
        level = "node" if size <= ranks_per_node else "network"
        for first in range(0, world_size, size):
            ranks = tuple(range(first, first + size))
            group = dist.new_group(list(ranks))
            if rank in ranks:
                teams.append(Team(group, ranks, level, device, wait))
    return teams


def time_collectives(team: Team, budget_s: float, most_bytes: int = LARGEST) -> list[CollectiveRow]:
    """Time collectives of every kind, from small to large sizes as far as the budget allows.

    Args:
        team: Process group of this rank. All its ranks return the same rows.
        budget_s: Time for all kinds. A size that starts within the budget is finished. Unit: s.
        most_bytes: Largest size of a collective. Unit: byte.
    """
    import torch.distributed as dist

    rows = []
    for kind in KINDS:
        begin = time.monotonic()
        for num_bytes in SIZES:
            elapsed_s = _slowest(time.monotonic() - begin, team)
            if num_bytes > most_bytes or elapsed_s > budget_s / len(KINDS):
                break
            time_s = _time_one(_make(kind, num_bytes, team), team)
            rows.append(CollectiveRow(
                level=team.level, kind=kind, num_gpus=len(team.ranks), num_bytes=_even_size(num_bytes, len(team.ranks)),
                time_s=time_s, host=socket.gethostname(),
            ))  # fmt: skip
        dist.barrier()
    return rows


def _time_one(run: Callable[[], None], team: Team) -> float:
    """Return the time of one run on the slowest rank. Unit: s."""
    import torch.distributed as dist

    # The first run also opens connections and touches buffers.
    warm_up_s = min(_time_runs(run, 1, team), _time_runs(run, 1, team))
    num_runs = max(1, min(MOST_RUNS, round(TARGET_S / max(warm_up_s, 1e-6))))
    dist.barrier(group=team.group)
    return _time_runs(run, num_runs, team)


def _time_runs(run: Callable[[], None], num_runs: int, team: Team) -> float:
    """Return the mean time of consecutive runs on the slowest rank. Unit: s."""
    team.wait()
    begin = time.monotonic()
    for _ in range(num_runs):
        run()
    team.wait()
    return _slowest((time.monotonic() - begin) / num_runs, team)


def _slowest(seconds: float, team: Team) -> float:
    """Return the longest time among the ranks of the team. Unit: s."""
    import torch
    import torch.distributed as dist

    longest = torch.tensor([seconds], dtype=torch.float64, device=team.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=team.group)
    return float(longest.item())


def _even_size(num_bytes: int, num_ranks: int) -> int:
    """Return the size near `num_bytes` that splits into equal shards of whole elements. Unit: byte."""
    part = num_ranks * ELEMENT_BYTES
    return max(1, num_bytes // part) * part


def _make(kind: str, num_bytes: int, team: Team) -> Callable[[], None]:
    """Return a function that runs one collective on newly allocated buffers."""
    import torch
    import torch.distributed as dist

    num_ranks, group = len(team.ranks), team.group
    whole = torch.zeros(_even_size(num_bytes, num_ranks) // ELEMENT_BYTES, dtype=torch.float32, device=team.device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_to_all":
        out = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(out, whole, group=group)
    if kind == "send_recv":
        return _ring(whole, team)
    shard = torch.zeros(whole.numel() // num_ranks, dtype=torch.float32, device=team.device)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, shard, group=group)
    return lambda: dist.reduce_scatter_tensor(shard, whole, group=group)


def _ring(outgoing: Any, team: Team) -> Callable[[], None]:
    """Return a function that sends a buffer to the next rank and receives one from the previous rank."""
    import torch
    import torch.distributed as dist

    index = team.ranks.index(dist.get_rank())
    next_rank, previous_rank = team.ranks[(index + 1) % len(team.ranks)], team.ranks[index - 1]
    incoming = torch.empty_like(outgoing)

    def run() -> None:
        operations = [
            dist.P2POp(dist.isend, outgoing, next_rank, team.group),
            dist.P2POp(dist.irecv, incoming, previous_rank, team.group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return run


KERNEL_TARGET_S = 0.05
"""Time to repeat one kernel. Unit: s."""
MOST_KERNEL_RUNS = 1000
"""Most repetitions of one kernel."""

GPU_SHAPES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (2048, 12288, 4096),
    (4096, 4096, 12288),
    (8192, 1024, 8192),
    (512, 8192, 8192),
)
"""Shapes (m, n, k) of GEMMs of small and large training layers."""
CPU_SHAPES = ((256, 256, 256), (512, 512, 512))
"""Shapes (m, n, k) of GEMMs to time on processors."""

GPU_COPIES = tuple(MIB << power for power in range(2, 11, 2))
"""Sizes of copies, 4 MiB to 1 GiB. Unit: byte."""
CPU_COPIES = (4 * MIB, 16 * MIB)
"""Sizes of copies on processors. Unit: byte."""

BURN_IN_S = 1.0
"""Time of GEMMs before the measurement, to reach the clocks under load. Unit: s."""


def time_kernels(device: Any, index: int, wait: Callable[[], None]) -> list[KernelRow]:
    """Time GEMMs and copies on one device.

    Args:
        device: Torch device.
        index: Number of the device on this host.
        wait: Waits for the device.
    """
    import torch

    is_cpu, host = device.type == "cpu", socket.gethostname()
    precision, dtype = ("fp32", torch.float32) if is_cpu else ("bf16", torch.bfloat16)
    if not is_cpu:
        _burn_in(device, dtype, wait)
    return [
        KernelRow(
            cls="gemm" if shape else "copy", precision=precision, shape=shape, flops=2.0 * math.prod(shape or (0,)),
            num_bytes=num_bytes, time_s=_time_kernel(run, wait), host=host, device=index,
        )
        for shape, num_bytes, run in _kernels(device, dtype, is_cpu)
    ]  # fmt: skip


def _kernels(device: Any, dtype: Any, is_cpu: bool) -> Iterator[tuple[tuple[int, ...], float, Callable[[], object]]]:
    """Yield shape, bytes moved and a function that runs it for every kernel; the shape of a copy is empty."""
    import torch

    for m, n, k in CPU_SHAPES if is_cpu else GPU_SHAPES:
        left, right = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
        out = torch.empty(m, n, device=device, dtype=dtype)
        yield (m, n, k), (m * k + k * n + m * n) * dtype.itemsize, partial(torch.mm, left, right, out=out)
    for size in CPU_COPIES if is_cpu else GPU_COPIES:
        source, target = (torch.empty(size, device=device, dtype=torch.uint8) for _ in range(2))
        yield (), 2.0 * size, partial(target.copy_, source)


def _burn_in(device: Any, dtype: Any, wait: Callable[[], None]) -> None:
    import torch

    matrix = torch.randn(4096, 4096, device=device, dtype=dtype)
    begin = time.monotonic()
    while time.monotonic() - begin < BURN_IN_S:
        for _ in range(50):
            matrix @ matrix
        wait()


def _time_kernel(run: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return the mean time of consecutive runs, as the best of three rounds. Unit: s."""
    run()
    wait()
    begin = time.monotonic()
    run()
    wait()
    num_runs = max(1, min(MOST_KERNEL_RUNS, round(KERNEL_TARGET_S / max(time.monotonic() - begin, 1e-6))))
    rounds = []
    for _ in range(3):
        begin = time.monotonic()
        for _ in range(num_runs):
            run()
        wait()
        rounds.append((time.monotonic() - begin) / num_runs)
    return min(rounds)


TIMEOUT_S = 300
"""Time after which a collective counts as failed. Unit: s."""


def main(folder: Path, is_gpu: bool, budget_s: float, most_bytes: int) -> None:
    """Measure and write `rank<R>.json`.

    Args:
        folder: Folder to write to.
        is_gpu: Whether to measure GPUs over NCCL or RCCL, or else processors over gloo.
        budget_s: Time for the collectives. Unit: s.
        most_bytes: Largest size of a collective. Unit: byte.
    """
    import torch
    import torch.distributed as dist

    rank, local, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = torch.device("cuda", local) if is_gpu else torch.device("cpu")
    wait: Callable[[], Any] = torch.cuda.synchronize if is_gpu else lambda: None
    if is_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if is_gpu else "gloo", timeout=timedelta(seconds=TIMEOUT_S))
    kernels = time_kernels(device, local, wait)
    dist.barrier()
    teams = make_teams(world_size, int(os.environ["LOCAL_WORLD_SIZE"]), device, wait)
    collectives = []
    for team in teams:
        rows = time_collectives(team, budget_s / len(teams), most_bytes)
        if rank == team.ranks[0]:
            collectives += rows
    rank_rows = RankRows(rank=rank, collectives=tuple(collectives), kernels=tuple(kernels))
    write_text(folder / f"rank{rank}.json", rank_rows.model_dump_json())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), sys.argv[2] == "gpu", float(sys.argv[3]), int(sys.argv[4]))
