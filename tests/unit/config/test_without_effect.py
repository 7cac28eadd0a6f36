"""Settings that can have no effect: refused of a row and a study, folded where a study varies what they need."""

from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import SETTINGS
from triplepoint.config.study import Settings
from triplepoint.errors import UserError
from triplepoint.plan import select
from triplepoint.predictions import Configuration, read_points, request_of
from triplepoint.published.rows import read_row

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)
DENSE = {"model": "llama3-8b", "cluster": "h200x32", "global_batch_size": 32, "num_gpus": 8}
SPARSE = DENSE | {"model": "mixtral-8x7b", "tp": 4}


def reason(row: dict[str, object]) -> str | None:
    return request_of(Configuration.model_validate(row), "a row", 1, CATALOGUE).invalid_because


@pytest.mark.parametrize(
    ("row", "name", "needed"),
    [
        (DENSE | {"fp8_recipe": "blockwise"}, "fp8_recipe: blockwise", "precision: fp8"),
        (DENSE | {"dispatch": "once_per_node"}, "dispatch: once_per_node", "a model with experts"),
        (DENSE | {"dispatch_precision": "fp8"}, "dispatch_precision: fp8", "a model with experts"),
        (DENSE | {"token_nodes": 4}, "token_nodes: 4", "a model with experts"),
        (DENSE | {"capacity_factor": 1.5}, "capacity_factor: 1.5", "a model with experts"),
        (SPARSE | {"pads_experts": False, "capacity_factor": 0}, "pads_experts: false", "a capacity factor"),
        (DENSE | {"lora_targets": ["linear_qkv"]}, "lora_targets: [linear_qkv]", "task: lora"),
        (DENSE | {"lora_rank": 8}, "lora_rank: 8", "task: lora"),
        (DENSE | {"recompute_modules": ["mlp"]}, "recompute_modules: [mlp]", "recompute: selective"),
        (DENSE | {"recompute_layers": 1, "recompute": "selective"}, "recompute_layers: 1", "recompute: full"),
        (DENSE | {"output_tokens": 8}, "output_tokens: 8", "task: inference"),
        (DENSE | {"etp": 2, "tp": 4}, "etp: 2", "a model with experts"),
        (DENSE | {"overlap": ["grad", "ep"]}, "overlap: [grad, ep]", "a model with experts"),
        (
            DENSE | {"recompute": "selective", "recompute_modules": ["mla_up_proj"]},
            "recompute_modules: [mla_up_proj]",
            "a model with these modules",
        ),
    ],
)
def test_row_with_a_setting_that_can_have_no_effect_is_refused(row: dict[str, object], name: str, needed: str) -> None:
    found = reason(row)
    assert found and found.startswith(f"{name} has no effect without ") and needed in found
    assert found.endswith("; leave it out")


@pytest.mark.parametrize(
    "row",
    [
        DENSE | {"lora_rank": 16, "fp8_recipe": None, "recompute_modules": []},
        DENSE | {"precision": "fp8", "fp8_recipe": "blockwise"},
        DENSE | {"task": "lora", "lora_rank": 8, "lora_targets": ["linear_qkv"]},
        SPARSE | {"capacity_factor": 1.5, "pads_experts": False, "dispatch": "once_per_node"},
        # What only joins ranks does nothing where there is one, and varies with the degree.
        DENSE | {"sequence_parallel": True, "context_exchange": "all_gather", "data_parallel_sharding": "optim"},
    ],
)
def test_row_with_defaults_or_what_has_an_effect_is_accepted(row: dict[str, object]) -> None:
    assert reason(row) is None


def test_one_row_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(
        "model,cluster,global_batch_size,tp,capacity_factor\nllama3-8b,h200x32,32,1,1.5\nmixtral-8x7b,h200x32,32,4,1.5\n"
    )
    assert [point.invalid_because is None for point in read_points(table, CONFIG)] == [False, True]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"fp8_recipe": "blockwise"}, "fp8_recipe: blockwise has no effect without precision: fp8"),
        ({"dispatch": "DeepEP"}, "dispatch: once_per_node has no effect without a model with experts"),
        ({"recompute_modules": "mlp"}, "recompute_modules: [mlp] has no effect without recompute: selective"),
        ({"etp": "2"}, "etp: 2 has no effect without a model with experts"),
        ({"overlap": "ep"}, "overlap: [ep] has no effect without a model with experts"),
        ({"output_tokens": "128"}, "output_tokens: 128 has no effect without task: inference"),
        ({"capacity_factor": "1.5"}, "capacity_factor: 1.5 has no effect without a model with experts"),
        ({"recompute": "selective (mla_up_proj)"}, "recompute_modules: [mla_up_proj] has no effect without"),
    ],
)
def test_published_row_with_a_setting_that_can_have_no_effect_is_refused(cells: dict[str, str], words: str) -> None:
    row = read_row(NEMOTRON | cells, 1, CONFIG)
    assert row.status == "invalid" and words in row.reason


def test_every_need_is_of_a_setting_of_studies() -> None:
    assert {name for name, setting in SETTINGS.items() if setting.needs} <= {*Settings.model_fields}


def plan(folder: Path, axes: str) -> int:
    for path in CONFIG.iterdir():
        if path.name != "studies":
            (folder / path.name).symlink_to(path.resolve())
    (folder / "studies").mkdir()
    (folder / "studies" / "mine.yaml").write_text(
        "description: A study of mine.\n"
        "defaults: {cluster: h200x32, engine: megatron, global_batch_size: 32, num_gpus: 8}\n"
        f"sweeps: [{{set: {{capacity_factor: 1.5, tp: 4}}, axes: {{model: {axes}}}}}]\n"
    )
    return len(select(folder, ["mine"]).entries)


def test_study_in_which_a_setting_never_has_an_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mine.yaml: capacity_factor: 1.5 has no effect without a model with experts"):
        plan(tmp_path, "[llama3-8b]")


def test_study_that_varies_what_a_setting_needs_is_planned(tmp_path: Path) -> None:
    assert plan(tmp_path, "[llama3-8b, mixtral-8x7b]") == 2
