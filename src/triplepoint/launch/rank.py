"""One rank of a gang: `python -m triplepoint.launch.rank RAW`, started by the node's agent.

The rank trains and writes `status/rank<N>.json` at its end: facts if it finished, else the error.
"""

import contextlib
import faulthandler
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
from triplepoint.launch.engines import RankContext, StepRecorder, get_engine
from triplepoint.launch.outcome import classify
from triplepoint.processes import die_with_parent
from triplepoint.redact import Redactor
from triplepoint.status import Status


def main(raw: Path) -> int:
    """Train in this process and return its exit status."""
    die_with_parent()
    context = RankContext.from_environment(raw)
    # When the gang makes no progress the agent sends SIGUSR1, to learn where each rank is.
    stack = (raw / "logs" / f"rank{context.rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
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
    exit_status = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)  # destructors of collective libraries hang if another rank is gone
