"""The configuration files that ship with the project, against what is published."""

import math
from pathlib import Path

import pytest

from tests.unit.config.conftest import REPOSITORY
from triplepoint.config import reference
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.study import Selection
from triplepoint.config.yaml_file import read_yaml
from triplepoint.simulate.kernels.parameters import read_kernels

CONFIG = Catalogue(REPOSITORY / "config")


def names(folder: str) -> list[str]:
    return sorted(path.stem for path in (REPOSITORY / "config" / folder).glob("*.yaml"))


@pytest.mark.parametrize("name", names("models"))
def test_model_is_readable(name: str) -> None:
    assert CONFIG.model(name).name == name


@pytest.mark.parametrize("name", names("clusters"))
def test_cluster_and_its_gpu_are_readable(name: str) -> None:
    cluster = CONFIG.cluster(name)
    gpu = CONFIG.gpu_of(cluster)
    assert (gpu is None) == (cluster.device == "cpu")
    assert gpu is None or {"nvidia": "cuda", "amd": "rocm"}[gpu.vendor] == cluster.device


@pytest.mark.parametrize(("name", "num_gpus"), [("h200x32", 32), ("h100x64", 64), ("mi250x32", 32)])
def test_cluster_has_the_gpus_in_its_name(name: str, num_gpus: int) -> None:
    assert CONFIG.cluster(name).num_gpus == num_gpus


@pytest.mark.parametrize("name", names("gpus"))
def test_gpu_ratios_are_those_of_accelerators(name: str) -> None:
    # Catches a slipped power of ten or a rate with sparsity, whatever the product: sparsity shows against bandwidth.
    # Blackwell doubled its matrix units and not its vector units, hence 31 there; 8 to 16 before, 3.4 on the H20 whose
    # matrix units run at a quarter of their rate, 4 on graphics cards.
    gpu = CONFIG.gpu(name)
    is_slow = gpu.chip in ("h20", "l40s")
    assert (3 if is_slow else 7) < gpu.peak_bf16_flops.value / gpu.peak_fp32_flops.value < 32
    fp8 = gpu.peak_fp8_flops.value if gpu.peak_fp8_flops else 2 * gpu.peak_bf16_flops.value
    assert fp8 / gpu.peak_bf16_flops.value == pytest.approx(2, rel=1e-3)
    assert (25 if is_slow else 100) < gpu.peak_bf16_flops.value / gpu.memory_bandwidth.value < 425
    assert 18e-3 < gpu.memory_capacity.value / gpu.memory_bandwidth.value < 57e-3
    if gpu.idle_power:
        assert 0.1 < gpu.idle_power.value / gpu.package_power_limit.value < 0.2


@pytest.mark.parametrize("name", names("gpus"))
def test_gpu_peak_is_that_of_its_compute_units(name: str) -> None:
    # Products of a generation have the same units, so that a wrong count of them or a rate with sparsity shows: what
    # one does in a cycle is a power of two, give or take the clock that the maker counts with.
    gpu = CONFIG.gpu(name)
    kernels = read_kernels(gpu, REPOSITORY / "config")
    per_cycle = gpu.peak_bf16_flops.value / (kernels.num_sms.value * gpu.max_sm_clock.value * 1e6)
    assert math.log2(per_cycle) == pytest.approx(round(math.log2(per_cycle)), abs=0.21)
    assert all(gemm.efficiency <= 1 for gemm in kernels.gemm.values())


TRANSFORMER = {"gpt3-175b": 173.9e9, "llama3-70b": 68.5e9, "mixtral-8x7b": 46.4e9, "mixtral-8x22b": 140.2e9}
"""Parameters without embeddings, of the models of arXiv:2509.10371 as its artifact defines them."""


@pytest.mark.parametrize(("name", "published"), TRANSFORMER.items())
def test_model_has_published_transformer_parameters(name: str, published: float) -> None:
    model = CONFIG.model(name)
    assert model.num_parameters - model.num_embedding_parameters == pytest.approx(published, rel=0.01)


def test_llama3_70b_has_published_embedding_parameters() -> None:
    assert CONFIG.model("llama3-70b").num_embedding_parameters == pytest.approx(2.1e9, rel=0.01)


@pytest.mark.parametrize("name", ["gpt3-30b", "llama3-30b"])
def test_scaled_down_model_has_30b_parameters(name: str) -> None:
    assert CONFIG.model(name).num_parameters == pytest.approx(30e9, rel=0.05)


@pytest.mark.parametrize(("small", "large"), [("gpt3-30b", "gpt3-175b"), ("llama3-30b", "llama3-70b")])
def test_scaled_down_model_keeps_its_family(small: str, large: str) -> None:
    kept = {
        "head_size",
        "vocab_size",
        "sequence_length",
        "activation",
        "normalization",
        "position_embedding",
        "add_bias",
    }
    for name in kept:
        assert getattr(CONFIG.model(small), name) == getattr(CONFIG.model(large), name)
    assert CONFIG.model(small).num_layers % 16 == 0


def test_num_parameters_of_tiny_gpt_counted_by_hand() -> None:
    layer = 2 * 256 + (128 * 384 + 384) + (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128)
    assert CONFIG.model("tiny-gpt").num_parameters == 4 * layer + 256 + 256 * 128 + 128 * 128


def test_num_parameters_of_tiny_mixtral_counted_by_hand() -> None:
    attention = 128 * 128 + 2 * 128 * 64 + 128 * 128
    layer = 2 * 128 + attention + 128 * 4 + 4 * 3 * 128 * 256
    assert CONFIG.model("tiny-mixtral").num_parameters == 4 * layer + 128 + 2 * 256 * 128


def test_selection_file_is_valid() -> None:
    path = REPOSITORY / "config" / "config.yaml"
    selection = parse(Selection, read_yaml(path), path)
    assert set(selection.clusters or ()) <= set(names("clusters"))


@pytest.mark.parametrize("path", reference.files())
def test_generated_file_is_up_to_date(path: str) -> None:
    found = (REPOSITORY / path).read_text() if Path(REPOSITORY / path).exists() else ""
    assert found == reference.files()[path], f"{path} is out of date; run {reference.COMMAND}"


@pytest.mark.parametrize("kind", ["model", "cluster", "gpu", "study"])
def test_schema_accepts_the_files_and_refuses_typos(kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = reference.schemas()[kind]
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.check_schema(schema)
    folder = "studies" if kind == "study" else f"{kind}s"
    for name in names(folder):
        content = read_yaml(REPOSITORY / "config" / folder / f"{name}.yaml")
        assert list(validator.iter_errors(content)) == []
        assert not validator.is_valid(content | {"typo": 1})
