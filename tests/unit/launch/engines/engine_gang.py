"""One rank of a gang that trains many points one after another, each on its engine: `engine_gang.py FOLDER`."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines import get_engine
from triplepoint.launch.engines.tracing import enable_flight_recorder


def main(folder: Path) -> None:
    enable_flight_recorder()
    dist.init_process_group("gloo")
    for name, content in json.loads((folder / "points.json").read_text()).items():
        context = RankContext.from_environment(folder / name)
        point = Point.model_validate(content)
        facts = get_engine(point.engine).train(point, context, StepRecorder(context))
        (folder / name / f"facts{context.rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
