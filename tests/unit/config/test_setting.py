"""What derives from the declaration of a setting, on made-up ones too."""

from typing import Any, Literal

import pandas as pd
import pytest
from pydantic import ValidationError

from tests.unit.config.test_rules import make
from triplepoint.config import rules
from triplepoint.config.base import Setting, write
from triplepoint.config.point import DEFAULTS, SETTINGS, Layout, settings_of
from triplepoint.config.study import Settings
from triplepoint.figures import labels
from triplepoint.tables.results import POINTS, _column

NAMES = {"model": "llama3-70b", "cluster": "h200x32", "engine": "simulated", "global_batch_size": 8}


def test_every_setting_is_a_key_of_studies_and_has_its_column() -> None:
    assert set(SETTINGS) <= set(Settings.model_fields)
    columns = {column.name for column in POINTS.columns}
    for name, setting in SETTINGS.items():
        assert (name in columns) == setting.has_column, name


def test_defaults_are_those_of_a_study() -> None:
    free = {"dp", "sequence_length"}
    assert {name: Settings.model_fields[name].default for name in DEFAULTS.keys() - free} == {
        name: value for name, value in DEFAULTS.items() if name not in free
    }


@pytest.mark.parametrize(
    ("annotation", "type_"),
    [
        (int, "int"),
        (float, "float"),
        (float | None, "float"),
        (bool, "bool"),
        (Literal["a", "b"], "str"),
        (tuple[Literal["a", "b"], ...], "names"),
        (tuple[int, ...], "str"),
    ],
)
def test_column_of_a_setting_has_its_type(annotation: Any, type_: str) -> None:
    column = _column("dropout", Setting("Share of activations left out."), annotation)
    assert (column.type, column.nullable, column.about) == (type_, True, "Share of activations left out.")


def test_column_of_an_unknown_type_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="setting extra: no column for values of type dict"):
        _column("extra", Setting("More."), dict[str, int])


def test_switch_of_the_layout_is_in_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = {"hierarchical": Setting("Reduce in two levels.", label={True: "hier"})}
    monkeypatch.setattr(labels, "SETTINGS", dict(SETTINGS) | made_up)
    monkeypatch.setattr(labels, "LAYOUT", [*labels.LAYOUT, "hierarchical"])
    plain = settings_of(make(tp=4)) | {"pipeline_layers": "", "schedule": "", "etp": 0}
    assert [labels._degrees(pd.Series(plain | {"hierarchical": on})) for on in (False, True)] == [
        "TP4·DP8",
        "TP4·DP8·HIER",
    ]


def test_setting_of_some_engines_names_the_default_as_a_study_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, default in (("samples", "padded"), ("etp", None), ("sequence_parallel", True)):
        monkeypatch.setattr(rules, "DEFAULTS", {name: default})
        monkeypatch.setattr(rules, "_LIMITED_ENGINES", {name: ("megatron",)})
        changes = {"layout": Layout(dp=32, etp=1)} if name == "etp" else {}
        reason = rules.check_engine(make().model_copy(update=changes))
        text = {"padded": "padded", None: "null", True: "true"}[default]
        assert reason is not None and reason.endswith(f"has none; set {name}: {text} or engine: megatron")


def test_longest_sequence_of_inference() -> None:
    with pytest.raises(ValidationError, match="prompt_tokens \\+ output_tokens is 2147483648, a sequence has at most"):
        Settings(**NAMES, task="inference", prompt_tokens=2**31 - 1, output_tokens=1)


def test_text_of_nothing_is_empty_and_of_zero_is_not() -> None:
    for value in (None, False, "", ()):
        assert write("x", "x{}", {"x": value}) == ""
    assert write("seed", "seed{}", {"seed": 0}) == "seed0"


def test_nulls_of_a_setting_are_zero_in_figures_and_shares_stay_shares() -> None:
    assert labels._without_nulls(pd.Series([None, 4.0]), None, has_names=False).tolist() == [0, 4]
    assert labels._without_nulls(pd.Series([None, 0.5]), None, has_names=False).tolist() == [0.0, 0.5]
    assert labels._without_nulls(pd.Series([None, "1f1b"]), None, has_names=False).tolist() == ["", "1f1b"]
    assert labels._without_nulls(pd.Series([["a", "b"], []]), None, has_names=True).tolist() == [("a", "b"), ()]
