"""Gangs forked from a process that has imported their engine once: `forked_gang.py SCRIPT`.

Each line of standard input is a gang: folder, number of ranks and port, as JSON. A line with its exit status answers.
"""

import gc
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(script: Path) -> None:
    gc.disable()  # ranks live for a few steps, and imports make no garbage
    spec = importlib.util.spec_from_file_location("gang", script)
    assert spec is not None and spec.loader is not None
    gang = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gang)
    answers = os.dup(1)
    os.dup2(2, 1)  # DeepSpeed writes to standard output when it is imported
    for line in sys.stdin:
        folder, world_size, port = json.loads(line)
        gang.prepare(Path(folder))
        if (process := os.fork()) == 0:
            os.environ.update(WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            os._exit(_run(gang, Path(folder), world_size))
        os.write(answers, f"{os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}\n".encode())


def _run(gang: Any, folder: Path, world_size: int) -> int:
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
    main(Path(sys.argv[1]))
