"""Inference in a pipeline of threads, on clocks of its own: a pass of a stage takes one, messages take nothing."""

import threading
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.launch.engines.native_points import GQA, make_point
from tests.unit.launch.engines.test_native_model import CPU, make_stage
from triplepoint.config.task import Inference
from triplepoint.launch.engines.native import generate
from triplepoint.launch.engines.native.parallel import layers_of_stage

PROMPT, OUTPUT = 24, 8
ranks = threading.local()


class Line:
    """What `torch.distributed` does between the threads; a message carries the time it was sent at."""

    def __init__(self, pp: int) -> None:
        self.pp = pp
        self.queues: dict[tuple[str, int, int], Queue[tuple[int, torch.Tensor]]] = {}
        kinds = ("on", "back")
        for kind, source, target in ((k, s, t) for k in kinds for s in range(pp) for t in range(pp)):
            self.queues[kind, source, target] = Queue()

    def get_process_group_ranks(self, group: str) -> list[int]:
        return list(range(self.pp))

    def all_reduce(self, x: torch.Tensor, group: str) -> None:
        assert group in ("on", "back")

    def isend(self, x: torch.Tensor, rank: int, group: str) -> Any:
        self.queues[group, ranks.place, rank].put((ranks.clock, x.clone()))
        return SimpleNamespace(wait=lambda: None)

    def recv(self, x: torch.Tensor, rank: int, group: str) -> None:
        sent, found = self.queues[group, rank, ranks.place].get(timeout=60)
        assert x.shape == found.shape and x.dtype == found.dtype
        x.copy_(found)
        ranks.clock = max(ranks.clock, sent)

    def is_empty(self) -> bool:
        return all(queue.empty() for queue in self.queues.values())


def serve(pp: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], int, Line]:
    """Return the text the last of `pp` stages makes, when it has it, and what is left on the line."""
    line, texts, clocks = Line(pp), {}, {}
    monkeypatch.setattr(generate, "dist", line)
    stages = {number: make_stage(GQA, numbers=layers_of_stage(make_point(GQA, pp=pp), number)) for number in range(pp)}
    monkeypatch.setattr(generate, "build_stages", lambda point, mesh, device: {mesh.place: stages[mesh.place]})
    asked = Inference(prompt_tokens=PROMPT, output_tokens=OUTPUT)
    point = make_point(GQA, pp=pp, task="inference", inference=asked, micro_batch_size=batch, global_batch_size=batch)
    tokens = torch.randint(GQA.vocab_size, (batch, 32), generator=torch.Generator().manual_seed(3))

    def run(place: int) -> None:
        ranks.place, ranks.clock = place, 0
        group = SimpleNamespace(get_group=lambda: "on", get_local_rank=lambda: place)
        mesh: Any = SimpleNamespace(place=place, pp=group, back="back", tp_group=None, world=None)
        recorder: Any = SimpleNamespace(first_token=lambda: None)
        made = generate.Generator(point, mesh, CPU, recorder)
        advance = made.stage.advance

        def timed(x: torch.Tensor, start: int) -> torch.Tensor:
            ranks.clock += 1
            return advance(x, start)

        monkeypatch.setattr(made.stage, "advance", timed)
        texts[place] = made.step(tokens, tokens).tolist()
        clocks[place] = ranks.clock

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(pp)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return texts[pp - 1], max(clocks.values()), line


@pytest.mark.parametrize(
    ("pp", "batch", "num_groups"), [(1, 4, 1), (2, 4, 2), (4, 4, 4), (4, 8, 4), (4, 5, 3), (2, 1, 1), (4, 1, 1)]
)
def test_stages_work_on_different_groups_at_once(
    pp: int, batch: int, num_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, finished, line = serve(pp, batch, monkeypatch)
    alone, _, _ = serve(1, batch, monkeypatch)
    assert text == alone
    assert line.is_empty()
    # With a group for every stage none waits, but while the pipeline fills; else each token goes round alone.
    assert finished == OUTPUT * max(num_groups, pp) + min(num_groups, pp) - 1


def test_prompts_of_many_groups_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inference, "prompts_together", 1)
    text, finished, line = serve(2, 6, monkeypatch)
    assert text == serve(1, 6, monkeypatch)[0]
    assert line.is_empty()
    # Six prompts one by one, then two groups of three: no stage waits between them either.
    assert finished == 6 + 2 * (OUTPUT - 1) + 1
