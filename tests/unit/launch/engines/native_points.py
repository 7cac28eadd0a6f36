"""Tiny models and points of them, a checkpoint, and a gang that trains them."""

import gzip
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout, Point, PointCluster, Steps
from triplepoint.launch.engines.native.model import FeedForward, Stage, TransformerLayer
from triplepoint.launch.engines.native.parameters import materialise
from triplepoint.processes import free_port

LLAMA = ModelConfig(
    name="tiny-llama",
    source="made for the tests",
    num_layers=4,
    hidden_size=32,
    ffn_hidden_size=64,
    num_attention_heads=4,
    num_query_groups=4,
    vocab_size=256,
    sequence_length=32,
    activation="swiglu",
    normalization="rmsnorm",
    position_embedding="rope",
)
GQA = LLAMA.model_copy(update={"name": "tiny-gqa", "num_query_groups": 2})
GPT = LLAMA.model_copy(
    update={
        "name": "tiny-gpt",
        "activation": "gelu",
        "normalization": "layernorm",
        "position_embedding": "learned",
        "add_bias": True,
    }
)
MOE = ModelConfig.model_validate(
    {**LLAMA.model_dump(), "name": "tiny-moe", "moe": {"num_experts": 4, "top_k": 2, "capacity_factor": None}}
)
TIED = GPT.model_copy(update={"name": "tiny-tied", "tie_embeddings": True})
WIDE = LLAMA.model_copy(
    update={"name": "wide", "num_layers": 2, "hidden_size": 128, "ffn_hidden_size": 1024, "vocab_size": 1024}
)
"""Its 8 large matrices have 131072 elements each: ZeRO-3 keeps what has fewer than 100000 on every rank."""


def make_point(model: ModelConfig = LLAMA, **changes: Any) -> Point:
    """Return a tiny point; fields of the layout and of the point are given by name."""
    layout = Layout(**{key: changes.pop(key) for key in list(changes) if key in Layout.model_fields})
    defaults: dict[str, Any] = {
        "model": model,
        "cluster": PointCluster(name="cpu-local", device="cpu", gpu=None, gpus_per_node=8),
        "engine": "native",
        "num_gpus": layout.tp * layout.pp * layout.dp * layout.cp,
        "layout": layout,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "sequence_length": 32,
        "precision": "fp32",
        "corpus": "stdlib",
        "steps": Steps(warmup=0, measured=3, profiled=0),
    }
    return Point(**{**defaults, **changes})


@dataclass(frozen=True)
class Trained:
    """What a point left behind."""

    folder: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of all ranks."""
        files = sorted((self.folder / "steps").glob("rank*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    @property
    def losses(self) -> list[float]:
        """Loss of each step; every rank that reports one must report the same."""
        by_step: dict[int, set[float]] = {}
        for row in self.rows:
            if row["loss"] is not None:
                by_step.setdefault(row["step"], set()).add(row["loss"])
        assert by_step and all(len(losses) == 1 for losses in by_step.values()), by_step
        return [losses.pop() for _, losses in sorted(by_step.items())]

    def count_in_trace(self, rank: int, name: str) -> int:
        """Return how often an operation stands in the trace of a rank."""
        with gzip.open(self.folder / "traces" / f"rank{rank}.json.gz") as trace:
            return sum(event.get("name") == name for event in json.load(trace)["traceEvents"])

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of rank 0."""
        return json.loads((self.folder / "facts0.json").read_text())


def parameters(names: Iterable[str], kept: Collection[str]) -> list[Any]:
    """Return names of layouts as parameters of a test; those not `kept` are left to `make test-all`."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.long) for name in names]


def asked_for(request: pytest.FixtureRequest, points: dict[str, Point], kept: Collection[str]) -> dict[str, Point]:
    """Return the points that are `kept`, and those that a parameter of a test of this run names."""
    given = [item.callspec.params.values() for item in request.session.items if hasattr(item, "callspec")]
    named = {value for values in given for value in values if isinstance(value, str)}
    return {name: point for name, point in points.items() if name in kept or name in named}


def train(
    points: dict[str, Point], folder: Path, timeout_s: float = 200, gang: str = "native_gang.py"
) -> dict[str, Trained]:
    """Train points in gangs of the script `gang`.

    On several ranks each point has a gang of its own, as in a launch: process groups of an earlier one would stay, with
    threads that look for messages a hundred times a second. DeepSpeed's first point takes longer than those threads.
    """
    together = all(point.num_gpus == 1 or point.engine == "deepspeed" for point in points.values())
    for number, batch in enumerate([points] if together else [{name: points[name]} for name in points]):
        _train(batch, folder / f"gang{number}", timeout_s, gang)
    return {path.name: Trained(path) for path in folder.glob("gang*/*") if path.is_dir()}


def _train(points: dict[str, Point], folder: Path, timeout_s: float, gang: str) -> None:
    folder.mkdir(parents=True)
    (folder / "points.json").write_text(json.dumps({name: p.model_dump(mode="json") for name, p in points.items()}))
    point = next(iter(points.values()))
    server = _server(gang, point.engine)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([str(folder), point.num_gpus, free_port()]) + "\n")
    server.stdin.flush()
    if select.select([server.stdout], [], [], timeout_s)[0]:
        status = server.stdout.readline().strip()
    else:
        status = f"no end within {timeout_s} s"
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert status == "0", "\n".join([status, *(file.read_text()[-3000:] for file in sorted(folder.glob("*.log")))])


_servers: dict[tuple[str, str], subprocess.Popen[str]] = {}


def _server(gang: str, engine: str) -> subprocess.Popen[str]:
    """Return the process that starts gangs of an engine; it ends with this one."""
    if (gang, engine) not in _servers or _servers[gang, engine].poll() is not None:
        command = [sys.executable, *(str(Path(__file__).with_name(name)) for name in ("forked_gang.py", gang))]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        _servers[gang, engine] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    return _servers[gang, engine]


def save_weights(path: Path, seed: int) -> str:
    """Write tiny-llama as another seed draws it, and return the path as a point has it."""
    with torch.device("meta"):
        layers = {number: TransformerLayer(LLAMA, FeedForward(LLAMA)) for number in range(LLAMA.num_layers)}
        stage = Stage(LLAMA, layers, 32, torch.float32)
    materialise(stage, "", seed, LLAMA.num_layers, torch.device("cpu"))
    torch.save(stage.state_dict(), path)
    return str(path)
