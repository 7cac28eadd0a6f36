from pathlib import Path

import pytest

from tests.unit.config.conftest import WriteStudy
from triplepoint.config.study import Settings, Study, expand
from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError


def settings(path: Path) -> list[Settings]:
    return expand(read(Study, path), path)


def error(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        settings(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_expand_product_has_last_axis_fastest(write_study: WriteStudy) -> None:
    path = write_study("  - axes: {tp: [1, 2], micro_batch_size: [1, 2]}")
    assert [(s.tp, s.micro_batch_size) for s in settings(path)] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_expand_sweeps_are_joined_in_order(write_study: WriteStudy) -> None:
    path = write_study("  - set: {pp: 4}\n  - axes: {tp: [2, 4]}")
    assert [(s.tp, s.pp) for s in settings(path)] == [(1, 4), (2, 1), (4, 1)]


def test_expand_axes_win_over_set_and_set_over_defaults(write_study: WriteStudy) -> None:
    path = write_study("  - set: {tp: 2, pp: 2}\n    axes: {pp: [4]}", defaults="global_batch_size: 8, tp: 4, seed: 7")
    assert [(s.tp, s.pp, s.seed) for s in settings(path)] == [(2, 4, 7)]


def test_expand_layout_axis_sets_coupled_values(write_study: WriteStudy) -> None:
    path = write_study("  - axes: {layout: [{tp: 2, dp: 2}, {pp: 4, model: tiny-gpt}]}")
    assert [(s.tp, s.pp, s.dp, s.model) for s in settings(path)] == [(2, 1, 2, "tiny-llama"), (1, 4, None, "tiny-gpt")]


def test_expand_layout_in_set_and_defaults(write_study: WriteStudy) -> None:
    path = write_study("  - set: {layout: {pp: 2}}", defaults="global_batch_size: 8, layout: {tp: 2, pp: 4}")
    assert [(s.tp, s.pp) for s in settings(path)] == [(2, 2)]


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [
        ("  - axes: {micro_batch: [1]}", "unknown key 'sweeps.0.axes.micro_batch' (did you mean 'micro_batch_size'?)"),
        ("  - set: {recomputation: full}", "unknown key 'sweeps.0.set.recomputation' (did you mean 'recompute'?)"),
        (
            "  - set: {tp: 2}\n  - axes: {layout: [{tpp: 2}]}",
            "unknown key 'sweeps.1.axes.layout.tpp' (did you mean 'tp'?)",
        ),
        ("  - sets: {tp: 2}", "unknown key 'sweeps.0.sets' (did you mean 'set'?)"),
        ("  - axes: {layout: [2]}", "sweeps.0.axes.layout: expected a mapping such as {tp: 2, pp: 4}, found 2"),
        ("  - axes: {tp: 2}", "sweeps.0.axes.tp: expected a list; write [2], found 2"),
        ("  - axes: {tp: []}", "sweeps.0.axes.tp: expected at least 1 of them in the list, found 0"),
        ("  - axes: {tp: [1, 2, 1]}", "sweeps.0.axes.tp: '1' is there twice; leave one out"),
        ("  - axes: {tp: [0]}", "tp: expected more than 0, found 0"),
        ("  - axes: {tp: [yes]}", "tp: expected a whole number, found True"),
        (
            "  - axes: {recompute: [always]}",
            "recompute: expected 'none', 'selective' or 'full', found 'always'",
        ),
        ("  - set: {steps: {warm_up: 2}}", "unknown key 'steps.warm_up' (did you mean 'warmup'?)"),
        ("  - axes: {tp: [1], layout: [{tp: 2}]}", "sweeps.0.axes: two axes set 'tp'; vary it in one of them"),
        (
            "  - set: {tpp: 2, ppp: 2}\n  - axes: {micro_batch: [1]}",
            "unknown key 'sweeps.0.set.tpp' (did you mean 'tp'?); unknown key 'sweeps.0.set.ppp' (did you mean 'pp'?); "
            "unknown key 'sweeps.1.axes.micro_batch' (did you mean 'micro_batch_size'?)",
        ),
        (
            "  - axes: {tp: [0, 1, x], pp: [1, y]}",
            "tp: expected more than 0, found 0; pp: expected a whole number, found 'y'; "
            "tp: expected a whole number, found 'x'",
        ),
        (
            "  - set: {layout: {layout: {tp: 1}}}",
            "unknown key 'sweeps.0.set.layout.layout'; a layout cannot hold another",
        ),
    ],
)
def test_expand_refuses_in_one_line(write_study: WriteStudy, sweeps: str, expected: str) -> None:
    assert error(write_study(sweeps)) == expected


def test_expand_missing_setting_is_named(write_study: WriteStudy) -> None:
    assert error(write_study("  - set: {tp: 1}", defaults="tp: 1")) == "key 'global_batch_size' is missing"


def test_study_without_sweeps_is_refused(write_study: WriteStudy) -> None:
    path = write_study("  []")
    assert error(path).startswith("sweeps: expected at least 1 of them in the list, found 0")
