"""CPU time of `triplepoint plan` for a study of 1,000 points of 32 H200 without shared predictions.

Run from the repository: python -m tests.benchmarks.plan_cost
"""

import tempfile
import time
from pathlib import Path

from triplepoint.plan import select
from triplepoint.plan_cost import plan_cost, summarise

STUDY = """\
description: 1,000 points.
defaults: {cluster: h200x32, engine: megatron, global_batch_size: 512, sequence_parallel: true}
sweeps:
  - axes:
      model: [llama3-70b, gpt3-175b]
      layout: [{tp: 2, pp: 8}, {tp: 4, pp: 4}, {tp: 4, pp: 8}, {tp: 8, pp: 2}, {tp: 8, pp: 4}]
      micro_batch_size: [1, 2, 4, 8, 16]
      recompute: [none, full]
      global_batch_size: [128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280]
"""


def main() -> None:
    """Print the number of points and their CPU time."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "config"
        config.mkdir()
        for part in Path("config").resolve().iterdir():
            if part.name != "studies":
                (config / part.name).symlink_to(part)
        (config / "studies").mkdir()
        (config / "studies" / "many.yaml").write_text(STUDY)
        wall, cpu = time.monotonic(), time.process_time()
        plan = select(config)
        costs = plan_cost(plan, Path(scratch) / "results", config)
        print(summarise(costs))
        print(
            f"{len(plan.entries)} points, {time.process_time() - cpu:.1f} s CPU, {time.monotonic() - wall:.1f} s wall"
        )


if __name__ == "__main__":
    main()
