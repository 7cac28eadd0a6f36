"""Stub engine for the ranks of a gang: it writes steps in lockstep with the other ranks, without training.

Ranks with it do not import torch, so that tests of gangs take a third of the time. Put this folder into PYTHONPATH.
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
        """Write the steps of `point`, each after all ranks have written the step before, and empty traces.

        If the folder of the run has a file `hold`, the process first stops until somebody resumes it.
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

    def replace_module(name: str, **contents: Any) -> None:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)

    replace_module("triplepoint.launch.engines.native", LIMITS=(), train=train)
    replace_module("triplepoint.launch.engines.loop", run_facts=lambda point: {}, memory_facts=dict)
