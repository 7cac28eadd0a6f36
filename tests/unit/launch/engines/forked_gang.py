"""Ranks forked from a process that has imported their engine once: `forked_gang.py SCRIPT FOLDER WORLD_SIZE PORT`."""

import gc
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def main(script: Path, folder: Path, world_size: int, port: str) -> int:
    spec = importlib.util.spec_from_file_location("gang", script)
    assert spec is not None and spec.loader is not None
    gang = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gang)
    os.environ.update(WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    gang.prepare(folder)
    gc.freeze()  # what is imported is no garbage of the ranks
    ranks = set()
    for rank in range(world_size):
        process = os.fork()
        if process == 0:
            os._exit(_train(gang.main, folder, str(rank)))
        ranks.add(process)
    failed = 0
    while ranks:
        process, status = os.wait()
        ranks.remove(process)
        if status and not failed:  # the others would wait for it
            failed = 1
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
    return failed


def _train(main: Callable[[Path], None], folder: Path, rank: str) -> int:
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(RANK=rank, LOCAL_RANK=rank)
    try:
        main(folder)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
