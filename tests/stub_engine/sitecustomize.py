"""In ranks of a gang, an engine that keeps step with the other ranks and writes steps, and trains nothing.

What happens to a gang is tested in a third of the time, since no rank imports torch. The folder goes into PYTHONPATH.
"""

import sys

if "triplepoint.launch.rank" in sys.orig_argv:
    import gzip
    import os
    import signal
    import time
    from types import ModuleType
    from typing import Any

    STEP_S = 0.05

    def train(point: Any, context: Any, recorder: Any) -> dict[str, Any]:
        """Write the steps of `point`, each when all ranks have written the one before, and empty traces.

        Stop first where the run's folder has a file `hold`, until somebody lets the process go on.
        """
        if (context.raw.parents[1] / "hold").exists():
            os.kill(os.getpid(), signal.SIGSTOP)
        steps = [context.raw / "steps" / f"rank{rank}.jsonl" for rank in range(context.world_size)]
        for step, kind in enumerate(point.steps.kinds):
            recorder.begin(step, kind)
            while not all(path.exists() and path.read_bytes().count(b"\n") >= step for path in steps):
                time.sleep(0.01)
            time.sleep(STEP_S)
            recorder.end()
            recorder.write(1.0, point.num_tokens, 1 << 20)
        if "profiled" in point.steps.kinds:
            with gzip.open(context.raw / "traces" / f"rank{context.rank}.json.gz", "wt") as trace:
                trace.write('{"traceEvents": []}')
        return {"num_parameters": 7, "device_name": "none", "torch": "none"}

    def put(name: str, **contents: Any) -> None:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)

    put("triplepoint.launch.engines.native", LIMITS=(), train=train)
    put("triplepoint.launch.engines.loop", run_facts=lambda point: {}, memory_facts=dict)
