"""One rank of a gang: `python -m triplepoint.launch.rank RAW`, started by the node's agent.

It trains, and whatever happens leaves `status/rank<N>.json`: facts when it finished, what went wrong when it did not.
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
    # The agent asks with SIGUSR1 where a rank stands when the gang makes no progress.
    stack = (raw / "logs" / f"rank{context.rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    try:
        point = read_planned_run(raw / "point.json").point
        facts = get_engine(point.engine).train(point, context, StepRecorder(context))
        from triplepoint.launch.engines.loop import run_facts  # torch is there by now

        facts = run_facts(point) | facts
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not cost the record of the first
        traceback.print_exc()
        _leave_status(context, {**_account_of(error), "facts": _facts_of_failure()})
        return 1
    _leave_status(context, {"status": Status.OK, "facts": facts})
    return 0


def _account_of(error: BaseException) -> dict[str, Any]:
    message = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if isinstance(error, OSError) and explain_os_error(error):
        return {"status": Status.CRASHED, "message": explain_os_error(error), "is_user_error": True}
    if isinstance(error, UserError):
        return {"status": Status.CRASHED, "message": str(error), "is_user_error": True}
    text = "".join(traceback.format_exception_only(error))
    return {"status": classify(text), "message": message[:1000], "is_user_error": False}


def _facts_of_failure() -> dict[str, Any]:
    """Return what the rank had of memory; nothing where it did not get as far as torch, or the device is gone."""
    if "torch" not in sys.modules:
        return {}
    with contextlib.suppress(Exception):  # whatever a broken device says must not hide what broke it
        from triplepoint.launch.engines.loop import memory_facts

        return memory_facts()
    return {}


def _leave_status(context: RankContext, account: dict[str, Any]) -> None:
    path = context.raw / "status" / f"rank{context.rank}.json"
    with contextlib.suppress(OSError):  # a full disk: the exit status and the log still tell
        write_json(path, Redactor().content({"rank": context.rank, "t_wall_ns": time.time_ns(), **account}))


if __name__ == "__main__":
    status = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # collective libraries hang in their destructors when a peer has gone
