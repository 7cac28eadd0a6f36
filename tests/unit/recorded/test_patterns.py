"""Steps by lines of a log: lines as the frameworks write them."""

import pytest

from triplepoint.errors import UserError
from triplepoint.recorded.patterns import LogMarks, step_pattern

MS = 1_000_000
LINES = {
    "megatron": " [2026-04-27 00:00:01] iteration {step:8d}/      90 | consumed samples:     2 | learning rate",
    "deepspeed": "[2024-08-15 21:12:21,408] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[",
    "torchtitan": "[rank0]:[titan] - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {step}.0123  memory: 1.00GiB",
    "huggingface": "  3%|▎         | {step}/1136 [00:16<08:40,  2.11it/s]",
    "lightning": "Epoch 0:   6%|█▍          | {step}/1563 [00:06<01:44, 14.19it/s, v_num=0, train_loss=1.800]",
}


@pytest.mark.parametrize("name", LINES)
def test_known_pattern_marks_a_step_a_line(name: str) -> None:
    marks = LogMarks(step_pattern(name), 0)
    rows = [row for step in (1, 2, 3) for row in marks.read(LINES[name].format(step=step), step * 20 * MS)]
    assert [(row["step"], row["t_start_ns"], row["t_end_ns"]) for row in rows] == [
        (0, 20 * MS, 40 * MS),
        (1, 40 * MS, 60 * MS),
    ]


def test_line_each_ten_steps_gives_ten_steps_of_its_mean() -> None:
    marks = LogMarks(step_pattern("megatron"), 0)
    assert marks.read(LINES["megatron"].format(step=10), 0) == []
    rows = marks.read(LINES["megatron"].format(step=20), 1000 * MS)
    assert len(rows) == 10
    assert {int(row["t_end_ns"]) - int(row["t_start_ns"]) for row in rows} == {100 * MS}


def test_bar_of_another_loop_and_a_new_epoch_mark_nothing() -> None:
    marks = LogMarks(step_pattern("huggingface"), 0)
    lines = ["1%| | 7/1136 [0", "9%| | 8/60 [0", "1%| | 8/1136 [0", "0%| | 0/1136 [0", "0%| | 1/1136 [0"]
    assert [len(marks.read(line, at * MS)) for at, line in enumerate(lines)] == [0, 0, 1, 0, 1]


def test_own_expression_without_number_counts_lines() -> None:
    marks = LogMarks(step_pattern("loss ="), 3)
    rows = [row for at in range(3) for row in marks.read("loss = 1.0", at * MS)]
    assert [(row["rank"], row["step"]) for row in rows] == [(3, 0), (3, 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("megatro", "not a framework.*megatron.*or a regular"), ("step (", "not a regular expression: missing")],
)
def test_bad_pattern_is_one_line(text: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        step_pattern(text)
