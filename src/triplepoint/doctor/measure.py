"""Short measurements of collectives and kernels, as rows of the tables that the simulator is calibrated from.

Each rank runs `python -m triplepoint.doctor.measure FOLDER cpu|gpu SECONDS LARGEST`. Collectives are timed over
sizes, all groups of one size at once, as a training step has them. GEMMs and copies are timed on each device: a
slow one stands out among its peers.
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
"""1 KiB to 256 MiB, each four times the last. Unit: byte."""
LARGEST = 256 * MIB
ELEMENT_BYTES = 4
MOST_RUNS = 200
TARGET_S = 0.05
"""How long one size is repeated: long against the clock, short against the budget."""


class CollectiveRow(Strict):
    """One collective of one group, as its slowest rank saw it."""

    level: str
    """node, for a group within a node, or network."""
    kind: str
    """Of the collective."""
    num_gpus: int
    """Size of the group."""
    num_bytes: int
    """Size as nccl-tests counts it. Unit: byte."""
    time_s: float
    """Time of one run. Unit: s."""
    host: str
    """Host of the group's first rank."""


class KernelRow(Strict):
    """One kernel on one device."""

    cls: str
    """Class of kernel: gemm, or copy."""
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
    """What one rank measured: the content of `rank<R>.json`."""

    rank: int
    """Rank."""
    collectives: tuple[CollectiveRow, ...]
    """Of the groups it is first in."""
    kernels: tuple[KernelRow, ...]
    """On its device."""


@dataclass(frozen=True)
class Team:
    """One rank's view of the groups of one size.

    Attributes:
        group: Process group this rank is in.
        ranks: Its ranks.
        level: node or network.
        device: Where buffers are.
        wait: Waits for the device.
    """

    group: Any
    ranks: tuple[int, ...]
    level: str
    device: Any
    wait: Callable[[], None]


def group_sizes(world_size: int, ranks_per_node: int) -> list[int]:
    """Return the sizes of groups to measure: two and all GPUs of a node, two and all nodes; each fills the world."""
    num_nodes = world_size // ranks_per_node
    sizes = {2, ranks_per_node, 2 * ranks_per_node, world_size} if num_nodes > 1 else {2, world_size}
    return sorted(size for size in sizes if size > 1 and world_size % size == 0)


def make_teams(world_size: int, ranks_per_node: int, device: Any, wait: Callable[[], None]) -> list[Team]:
    """Return this rank's team for each size of group; every rank calls this, in the same order."""
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
    """Return the time of every kind and size that the budget has room for; the same on all ranks of the team.

    Args:
        team: The groups.
        budget_s: Time for all of it; a size that begins within it is finished. Unit: s.
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
                level=team.level, kind=kind, num_gpus=len(team.ranks), num_bytes=_whole(num_bytes, len(team.ranks)),
                time_s=time_s, host=socket.gethostname(),
            ))  # fmt: skip
        dist.barrier()
    return rows


def _time_one(run: Callable[[], None], team: Team) -> float:
    """Return how long one run takes on the slowest rank. Unit: s."""
    import torch.distributed as dist

    first = _timed(run, 1, team)  # connections are made, buffers touched
    first = min(first, _timed(run, 1, team))
    num_runs = max(1, min(MOST_RUNS, round(TARGET_S / max(first, 1e-6))))
    dist.barrier(group=team.group)
    return _timed(run, num_runs, team)


def _timed(run: Callable[[], None], num_runs: int, team: Team) -> float:
    team.wait()
    begin = time.monotonic()
    for _ in range(num_runs):
        run()
    team.wait()
    return _slowest((time.monotonic() - begin) / num_runs, team)


def _slowest(seconds: float, team: Team) -> float:
    """Return the largest of what the ranks of the team have. Unit: s."""
    import torch
    import torch.distributed as dist

    found = torch.tensor([seconds], dtype=torch.float64, device=team.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=team.group)
    return float(found.item())


def _whole(num_bytes: int, num_ranks: int) -> int:
    """Return a size near `num_bytes` that can be cut into equal parts of whole elements. Unit: byte."""
    part = num_ranks * ELEMENT_BYTES
    return max(1, num_bytes // part) * part


def _make(kind: str, num_bytes: int, team: Team) -> Callable[[], None]:
    """Return a function that runs one collective on newly allocated buffers."""
    import torch
    import torch.distributed as dist

    num_ranks, group = len(team.ranks), team.group
    whole = torch.zeros(_whole(num_bytes, num_ranks) // ELEMENT_BYTES, dtype=torch.float32, device=team.device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_to_all":
        out = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(out, whole, group=group)
    if kind == "send_recv":
        return _ring(whole, team)
    part = torch.zeros(whole.numel() // num_ranks, dtype=torch.float32, device=team.device)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _ring(whole: Any, team: Team) -> Callable[[], None]:
    """Return a function that sends a buffer to the next rank while receiving one from the last."""
    import torch
    import torch.distributed as dist

    here = team.ranks.index(dist.get_rank())
    following, last = team.ranks[(here + 1) % len(team.ranks)], team.ranks[here - 1]
    incoming = torch.empty_like(whole)

    def run() -> None:
        operations = [
            dist.P2POp(dist.isend, whole, following, team.group),
            dist.P2POp(dist.irecv, incoming, last, team.group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return run


KERNEL_TARGET_S = 0.05
MOST_KERNEL_RUNS = 1000

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
"""GEMMs (m, n, k) of training layers, small and large."""
CPU_SHAPES = ((256, 256, 256), (512, 512, 512))

GPU_COPIES = tuple(MIB << power for power in range(2, 11, 2))
"""4 MiB to 1 GiB. Unit: byte."""
CPU_COPIES = (4 * MIB, 16 * MIB)

BURN_IN_S = 1.0
"""GEMMs before timing, so that clocks are those under load. Unit: s."""


def time_kernels(device: Any, index: int, wait: Callable[[], None]) -> list[KernelRow]:
    """Return the time of GEMMs and copies on one device.

    Args:
        device: The torch device.
        index: Its number on this host.
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
    """Return shape, bytes moved and a run of every kernel to time; a copy has no shape."""
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

    one = torch.randn(4096, 4096, device=device, dtype=dtype)
    begin = time.monotonic()
    while time.monotonic() - begin < BURN_IN_S:
        for _ in range(50):
            one @ one
        wait()


def _time_kernel(run: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return how long one run takes when runs follow one another; the best of three rounds. Unit: s."""
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


def main(folder: Path, is_gpu: bool, budget_s: float, most_bytes: int) -> None:
    """Measure and write `rank<R>.json`.

    Args:
        folder: Where to write.
        is_gpu: Whether to measure GPUs, over NCCL or RCCL; processors over gloo otherwise.
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
    found = RankRows(rank=rank, collectives=tuple(collectives), kernels=tuple(kernels))
    write_text(folder / f"rank{rank}.json", found.model_dump_json())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), sys.argv[2] == "gpu", float(sys.argv[3]), int(sys.argv[4]))
