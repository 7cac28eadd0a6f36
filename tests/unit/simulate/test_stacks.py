"""The registry of software stacks."""

from pathlib import Path
from typing import Any

import pytest

from tests.published_figures import points
from tests.unit.published.cells import NEMOTRON
from tests.unit.simulate.jobs import gpt, job, mixtral
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.errors import UserError
from triplepoint.published.rows import read_row
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import Communication
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.training import stage_work

CONFIG = Path("config")


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("Megatron-LM (2021)", "megatron-lm-2021"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-Core r0.8", "megatron-core"),
        ("NeMo dgxc v25.04", "nemo-dgxc"),
        ("NeMo AutoModel", "nemo-automodel"),
        ("NeMo b70681c", "nemo-published"),
        ("NeMo 24.12", "nemo"),
        ("Megatron-LM ROCm f712ab8", "megatron-lm-rocm"),
        ("PyTorch", "other"),
        ("", "other"),
        ("a trainer nobody knows", "other"),
    ],
)
def test_find_stack_by_words_of_the_framework(framework: str, name: str) -> None:
    assert find_stack(framework, CONFIG).name == name


def test_unknown_stack_is_one_and_the_same_for_overlap_and_for_layers() -> None:
    job = read_row(NEMOTRON | {"framework": "a trainer nobody knows"}, 1, CONFIG).job
    assert job is not None and job.software == find_stack("a trainer nobody knows", CONFIG)
    assert job.overlap == set(job.software.overlap) == {"grad", "param"}
    assert not job.software.has_placeholder_gradients, "those are TransformerEngine's"


@pytest.mark.parametrize(("framework", "num_bytes"), [("DeepSpeed", 2), ("Megatron-Core", 4)])
def test_gradient_bytes_of_bf16_training(framework: str, num_bytes: int) -> None:
    stack = find_stack(framework, CONFIG)
    assert [stack.gradient_bytes(precision) for precision in ("fp32", "bf16", "fp16")] == [4, num_bytes, 2]


PUBLISHED = "NeMo b70681c"


@pytest.mark.parametrize(
    ("model", "changes", "num_bytes"),
    [
        (gpt(), {"data_parallel_sharding": "optim"}, 4),
        (gpt(), {"data_parallel_sharding": "optim_grads_params"}, 2),
        (mixtral(), {"data_parallel_sharding": "optim"}, 2),
    ],
)
def test_published_gradients_are_fp32_but_of_experts_and_fsdp(
    model: ModelConfig, changes: dict[str, Any], num_bytes: int
) -> None:
    assert Share(job(model, dp=2, stack=PUBLISHED, **changes)).gradient_element == num_bytes
    assert Share(job(model, dp=2, stack="Megatron-Core", **changes)).gradient_element == 4


def test_published_optimizer_is_10_bytes_of_a_dense_parameter_and_12_with_experts() -> None:
    for model, num_bytes in ((gpt(), 10), (mixtral(), 12)):
        one = job(model, stack=PUBLISHED)
        weights = peak_memory(one).weights
        assert peak_memory(one).optimizer == pytest.approx(weights / 2 * num_bytes)


def test_fsdp_gathers_a_third_time_to_recompute() -> None:
    def num_gathers(recompute: str, stack: str) -> int:
        one = job(dp=4, data_parallel_sharding="optim_grads_params", recompute=recompute, stack=stack)
        work = stage_work(one)[0].chunks[0]
        found = (*work.forward, *work.backward_input)
        return sum(op.count for op in found if isinstance(op, Communication) and op.kind == "all_gather")

    layers, root = gpt().num_layers, 1
    assert num_gathers("none", PUBLISHED) == 2 * layers + root
    assert num_gathers("full", PUBLISHED) == 3 * layers + root
    assert num_gathers("full", "Megatron-Core") == 2 * layers + root


def test_simulated_points_run_on_the_software_of_their_cluster() -> None:
    published, other = job_of(points()[0], Catalogue(CONFIG)), job_of(points()[0], Catalogue(CONFIG), "Megatron-Core")
    assert (published.stack, published.software.name) == (PUBLISHED, "nemo-published")
    assert any(level.has_reduction for level in other.fabric.levels)
    assert not any(level.has_reduction for level in published.fabric.levels), "NVLS is off"


def test_unknown_stack_of_a_cluster_names_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue(CONFIG)
    cluster = catalogue.cluster("h200x32").model_copy(update={"stack": "a trainer nobody knows"})
    monkeypatch.setattr(Catalogue, "cluster", lambda self, name: cluster)
    expected = r"clusters/h200x32.yaml: stack: no known software in 'a trainer nobody knows'; expected .*nemo b70681c"
    with pytest.raises(UserError, match=expected):
        job_of(points()[0], catalogue)


def test_only_software_with_a_measured_pause_pauses() -> None:
    paused = find_stack("NeMo 24.04 (MLPerf Training v4.0, GPT-3)", CONFIG)
    assert paused.step_pause is not None and paused.step_jitter is not None
    usual = find_stack("NeMo 24.04 (MLPerf Training v4.0)", CONFIG)
    assert (usual.step_pause, usual.step_jitter) == (None, None)
    ignored = {"name", "match", "source", "step_pause", "step_jitter"}
    assert paused.model_dump(exclude=ignored) == usual.model_dump(exclude=ignored), "the same framework in all else"
