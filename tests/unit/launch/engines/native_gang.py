"""One rank of a gang that trains many points one after another, so that torch is imported once.

Run as `native_gang.py FOLDER`: reads `points.json`, writes `losses.json` of each point into its own folder.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines import native
from triplepoint.launch.engines.native.tracing import enable_flight_recorder


def main(folder: Path) -> None:
    enable_flight_recorder()
    dist.init_process_group("gloo")
    for name, content in json.loads((folder / "points.json").read_text()).items():
        context = RankContext.from_environment(folder / name)
        facts = native.train(Point.model_validate(content), context, StepRecorder(context))
        (folder / name / f"facts{context.rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
