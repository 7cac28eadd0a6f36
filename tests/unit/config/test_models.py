"""The catalogue of models: each once, and as large as published."""

import csv
import re
from pathlib import Path

import pytest

from tests.unit.config.conftest import REPOSITORY
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.errors import UserError

CATALOGUE = Catalogue(REPOSITORY / "config")
NAMES = sorted(path.stem for path in (REPOSITORY / "config" / "models").glob("*.yaml"))
PUBLISHED_ERROR = 0.035


def published() -> dict[str, float]:
    """Return the published number of parameters by model, in billions."""
    with Path("tests/data/model_parameters.csv").open() as lines:
        return {row["model"]: float(row["parameters_billion"]) for row in csv.DictReader(lines)}


@pytest.mark.parametrize(("name", "billions"), published().items())
def test_model_has_as_many_parameters_as_published(name: str, billions: float) -> None:
    assert CATALOGUE.model(name).num_parameters == pytest.approx(billions * 1e9, rel=PUBLISHED_ERROR)


def test_no_two_models_have_one_name() -> None:
    bare = [name.replace("-", "") for name in NAMES]
    assert sorted(bare) == sorted(set(bare))


def test_no_two_models_are_one_architecture() -> None:
    shapes: dict[str, str] = {}
    for name in NAMES:
        shape = str(CATALOGUE.model(name).model_dump(exclude={"name", "source"}))
        assert shape not in shapes, f"{name} and {shapes[shape]} are the same"
        shapes[shape] = name


def test_pattern_of_mixers_without_their_shapes_is_refused() -> None:
    content = CATALOGUE.model("mamba2-370m").model_dump()
    for change, reason in (
        ({"mixers": {"pattern": "M"}}, "pattern has 'M', which needs mamba; add it"),
        ({"mixers": {"pattern": "*E"}}, "pattern of mixers has 'E', which needs moe; add it"),
        (
            {"mixers": {"pattern": "*-", "has_feed_forward": True}},
            "pattern has '-', 'E' or 'H', and has_feed_forward is true",
        ),
    ):
        with pytest.raises(UserError, match=re.escape(reason)):
            parse(ModelConfig, content | change, "a.yaml")
