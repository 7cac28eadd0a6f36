"""The ranks of one node: `python -m triplepoint.launch.rank PIPE FIRST END RAW`, started by the node's agent.

This process imports the engine once, forks the ranks FIRST to END - 1 and ends, which leaves them to the agent as its
children. Importing takes 4 to 9 s of CPU time (measured on 2026-11-28). The pipe takes rank and process number of each
rank. A rank trains, and writes `status/rank<N>.json` at its end: facts if it finished, else the error.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError, explain_os_error
from triplepoint.files import write_json
from triplepoint.launch.engines import RankContext, StepRecorder, get_engine, import_trainer
from triplepoint.launch.error_texts import classify
from triplepoint.processes import die_with_parent, fork_for_parent, name_process
from triplepoint.redact import Redactor
from triplepoint.status import Status


def main(pipe: int, ranks: range, raw: Path) -> int:
    """Start the ranks and return 0; in each of them, train and return its exit status."""
    die_with_parent()
    os.set_inheritable(pipe, False)
    _write_stack_on_signal(raw, ranks[0])
    _import_engine(raw)
    gc.freeze()  # what is imported is no garbage of the ranks
    for rank in ranks:
        pid = fork_for_parent()
        # Both write it: the rank in case its starter is killed in between.
        os.write(pipe, f"{rank} {pid or os.getpid()}\n".encode())
        if not pid:
            os.close(pipe)
            _be_rank(rank, rank - ranks[0], raw / "logs" / f"rank{rank}.log")
            return train(raw)
    return 0


def _write_stack_on_signal(raw: Path, rank: int) -> None:
    """Write stacks on SIGUSR1, which the agent sends when the gang makes no progress, to learn where each rank is."""
    stack = (raw / "logs" / f"rank{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)


def _import_engine(raw: Path) -> None:
    """Import the engine of the planned run, unless its import could open a GPU, which processes cannot share by fork.

    An error goes into the log, and the ranks import the engine again: theirs goes into their status.
    """
    try:
        point = read_planned_run(raw / "point.json").point
        if point.cluster.device == "cpu":
            import_trainer(point.engine)
    except BaseException:
        traceback.print_exc()


def _be_rank(rank: int, local_rank: int, log: Path) -> None:
    """Give this process the variables, the name and the log of a rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
    name_process(f"rank{rank}")
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)


def train(raw: Path) -> int:
    """Train in this process and return its exit status."""
    context = RankContext.from_environment(raw)
    _write_stack_on_signal(raw, context.rank)
    try:
        point = read_planned_run(raw / "point.json").point
        facts = get_engine(point.engine).train(point, context, StepRecorder(context))
        from triplepoint.launch.engines.loop import run_facts  # here, since it imports torch

        facts = run_facts(point) | facts
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not prevent the record of the first
        traceback.print_exc()
        _write_status(context, {**_describe_error(error), "facts": _memory_facts()})
        return 1
    _write_status(context, {"status": Status.OK, "facts": facts})
    return 0


def _describe_error(error: BaseException) -> dict[str, Any]:
    """Return status and message of an exception, as `status/rank<N>.json` has them."""
    message = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if isinstance(error, OSError) and explain_os_error(error):
        return {"status": Status.CRASHED, "message": explain_os_error(error), "is_user_error": True}
    if isinstance(error, UserError):
        return {"status": Status.CRASHED, "message": str(error), "is_user_error": True}
    text = "".join(traceback.format_exception_only(error))
    return {"status": classify(text), "message": message[:1000], "is_user_error": False}


def _memory_facts() -> dict[str, Any]:
    """Return the memory use of a failed rank; nothing if it had not imported torch yet, or its device is gone."""
    if "torch" not in sys.modules:
        return {}
    with contextlib.suppress(Exception):  # a further error of a broken device must not hide the first one
        from triplepoint.launch.engines.loop import memory_facts

        return memory_facts()
    return {}


def _write_status(context: RankContext, status: dict[str, Any]) -> None:
    path = context.raw / "status" / f"rank{context.rank}.json"
    with contextlib.suppress(OSError):  # a full disk: the exit status and the log are still there
        write_json(path, Redactor().content({"rank": context.rank, "t_wall_ns": time.time_ns(), **status}))


if __name__ == "__main__":
    exit_status = main(int(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[4]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)  # destructors of collective libraries hang if another rank is gone
