"""What a run chooses of its model."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.simulate.jobs import job, llama, mixtral
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point, settings_of
from triplepoint.config.study import Settings
from triplepoint.plan import points_of, refusal_of
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.work.experts import Experts
from triplepoint.simulate.work.layer_parts import Share

CATALOGUE = Catalogue(Path("config"))
CHOICES = ("num_mtp_layers", "capacity_factor", "pads_experts")


def make(model: str, engine: str = "simulated", **chosen: Any) -> Point:
    named: dict[str, Any] = {"model": model, "cluster": "h200x32", "engine": engine, "global_batch_size": 64}
    (point,) = points_of(Settings.model_validate(named | chosen), CATALOGUE, "a study")
    return point


@pytest.mark.parametrize(
    ("model", "chosen", "found"),
    [
        ("llama3-8b", {}, (0, None, None)),
        ("llama3-8b", {"num_mtp_layers": 2}, (2, None, None)),
        ("mixtral-8x7b", {}, (0, 1.0, True)),
        ("mixtral-8x7b", {"capacity_factor": 0}, (0, None, None)),
        ("mixtral-8x7b", {"capacity_factor": 1.5, "pads_experts": False}, (0, 1.5, False)),
    ],
)
def test_choices_are_in_the_model_and_in_columns(model: str, chosen: dict[str, Any], found: tuple[Any, ...]) -> None:
    values = settings_of(make(model, **chosen))
    assert tuple(values[name] for name in CHOICES) == found


def test_choosing_what_the_model_has_is_the_same_point() -> None:
    same = make("mixtral-8x7b", num_mtp_layers=0, capacity_factor=1.0, pads_experts=True)
    assert same.digest() == make("mixtral-8x7b").digest()
    assert make("mixtral-8x7b", capacity_factor=1.1).digest() != same.digest()


def test_experts_of_a_dense_model_are_folded() -> None:
    assert make("llama3-8b", capacity_factor=1.0) == make("llama3-8b")


def test_engines_without_further_tokens_refuse_them_in_one_line() -> None:
    for engine in ("native", "megatron", "deepspeed"):
        reason = refusal_of(make("llama3-8b", engine, num_mtp_layers=1), CATALOGUE)
        assert reason == (
            f"the {engine} engine has no num_mtp_layers (llama3-8b); choose another model or engine: simulated"
        )


@pytest.mark.parametrize(
    ("factor", "pads", "load"), [(None, True, 1.04), (1.5, True, 1.5), (1.5, False, 1.04), (1.01, False, 1.01)]
)
def test_tokens_of_the_fullest_rank(factor: float | None, pads: bool, load: float) -> None:
    model = mixtral(factor)
    assert model.moe
    found = job(model.model_copy(update={"moe": model.moe.model_copy(update={"pads_experts": pads})}), dp=4, ep=4)
    assert Experts(Share(found)).copies == round(2048 * 2 * load)


def test_further_tokens_take_memory() -> None:
    plain, deep = (peak_memory(job(llama(num_mtp_layers=number))) for number in (0, 1))
    # A layer with norms and a projection of twice the width, of 18 bytes a parameter.
    added = deep.weights + deep.gradients + deep.optimizer - plain.weights - plain.gradients - plain.optimizer
    assert added == 18 * (llama(num_mtp_layers=1).num_parameters - llama().num_parameters)
    assert deep.activations > plain.activations
