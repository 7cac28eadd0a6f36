"""One rank of the measurement: `python -m triplepoint.doctor.measure.rank FOLDER cpu|gpu SECONDS LARGEST`."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from triplepoint.doctor.measure.collectives import make_teams, time_collectives
from triplepoint.doctor.measure.kernels import time_kernels
from triplepoint.doctor.measure.rows import RankRows
from triplepoint.files import write_text
from triplepoint.processes import die_with_parent

TIMEOUT_S = 300


def main(folder: Path, is_gpu: bool, budget_s: float, most_bytes: int) -> None:
    """Measure and write `rank<R>.json`.

    Args:
        folder: Where to write.
        is_gpu: Whether to measure GPUs, over NCCL or RCCL; processors over gloo otherwise.
        budget_s: Time for the collectives. Unit: s.
        most_bytes: Largest message. Unit: byte.
    """
    import torch
    import torch.distributed as dist

    rank, local, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = torch.device("cuda", local) if is_gpu else torch.device("cpu")
    wait: Callable[[], Any] = torch.cuda.synchronize if is_gpu else _nothing
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


def _nothing() -> None:
    return


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), sys.argv[2] == "gpu", float(sys.argv[3]), int(sys.argv[4]))
