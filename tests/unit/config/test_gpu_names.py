"""Names of GPUs as tables, clouds and drivers spell them."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu_names import AmbiguousGpuError, UnknownGpuError, check_beside, find_gpu, is_named, read_gpu
from triplepoint.errors import UserError

GPUS = Catalogue(Path("config")).gpus

NAMES = {
    "H100 PCIe": "h100-pcie",
    "H100-PCIE-80GB": "h100-pcie",
    "H100-SXM-80GB": "h100",
    "NVIDIA H100 80GB HBM3": "h100",
    "8xH100 SXM": "h100",
    "HGX H100": "h100",
    "H100 NVL": "h100-nvl",
    "H100-NVL-94GB": "h100-nvl",
    "H100 96GB HBM2e 500W": "h100-96gb",
    "NVIDIA H20": "h20",
    "H20-3e": "h20-3e",
    "H20 141GB": "h20-3e",
    "H800": "h800",
    "NVIDIA A800-SXM4-80GB": "a800",
    "A100-SXM4-40GB": "a100-40gb",
    "A100-SXM (single 8-GPU node)": "a100",
    "DGX A100 80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100-pcie",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "H200-SXM-141GB": "h200",
    "H200 NVL": "h200-nvl",
    "NVIDIA GH200 480GB": "gh200",
    "B200-SXM-192GB": "b200",
    "NVIDIA B200 180GB": "b200",
    "B300": "b300",
    "GB200 NVL72": "gb200",
    "GB300 (288 GB)": "gb300",
    "MI250 (GCD)": "mi250",
    "MI250X 128GB": "mi250x",
    "MI300X-192GB": "mi300x",
    "MI325X": "mi325x",
    "AMD Instinct MI350X": "mi350x",
    "MI355X 288GB": "mi355x",
    "L40S": "l40s",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "V100-SXM2-32GB": "v100",
    "h100": "h100",
}


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_find_gpu_knows_what_people_write(text: str, name: str) -> None:
    assert find_gpu(text, GPUS).name == name


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("H100", {"h100", "h100-pcie", "h100-nvl", "h100-96gb"}),
        ("A100 80GB", {"a100", "a100-pcie"}),
        ("A100 40GB", {"a100-40gb", "a100-pcie-40gb"}),
        ("A100-PCIE", {"a100-pcie", "a100-pcie-40gb"}),
        ("H100 94GB", {"h100-nvl", "h100-96gb"}),
        ("V100", {"v100", "v100-16gb"}),
        ("A100 / H100", {"a100", "h100"}),
    ],
)
def test_find_gpu_names_all_that_a_name_could_be(text: str, both: set[str]) -> None:
    with pytest.raises(AmbiguousGpuError) as caught:
        find_gpu(text, GPUS)
    message = str(caught.value)
    assert {word for word in re.findall(r"[a-z0-9-]+", message.split("'")[2]) if word in GPUS} == both
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("L40", "nearest known: l40s"),
        ("MI300A", "nearest known: mi300x"),
        ("H100-SXM-64GB", "known of h100 are"),
        ("H100-SXM-80GB 500W", "known of h100 are"),
        ("V100 PCIe", "known of v100 are"),
        ("TPU v5p", "is not known; all are in config/gpus"),
        ("H1OO", "nearest known: h100"),
        ("A40", "nearest known: A100, A800, L40S; all"),
        ("B2000", "nearest known: b200"),
    ],
)
def test_find_gpu_unknown_name_is_refused_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(UnknownGpuError, match=nearest):
        find_gpu(text, GPUS)


def test_find_gpu_unknown_name_lists_few() -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu("A40", GPUS)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("text", "beside", "name"),
    [
        ("A100", "NVLink 40GB", "a100-40gb"),
        ("A100", "DGX; 40GB cards", "a100-40gb"),
        ("A100 SXM", "A100 with 40 GB of memory", "a100-40gb"),
        ("A100", "PCIe only; 40GB", "a100-pcie-40gb"),
        # Memory that a run used is not that of its GPU; a small b is a bit.
        ("A100 SXM", "40 GB of memory published", "a100"),
        ("A100 SXM", "40Gb", "a100"),
    ],
)
def test_find_gpu_follows_the_memory_beside_it(text: str, beside: str, name: str) -> None:
    assert find_gpu(text, GPUS, beside).name == name


def test_read_gpu_names_the_others() -> None:
    found, others = read_gpu("A100", GPUS, "", "HGX")
    assert (found.name, set(others)) == ("a100", {"a100-40gb", "a100-pcie", "a100-pcie-40gb"})
    assert read_gpu("A100-SXM4-40GB", GPUS)[1] == ()


@pytest.mark.parametrize(
    ("name", "interconnect", "notes", "words"),
    [
        ("l40s", "NVLink", "", ("NVLink", "l40s", "PCIe 4")),
        ("h100-pcie", "NVSwitch", "", ("NVSwitch", "h100-pcie", "PCIe 5")),
        ("h800", "PCIe", "", ("PCIe", "h800", "NVLink 4")),
        ("h100", "no NVLink", "", ("no NVLink", "h100")),
        ("h100", "NVLink3", "", ("NVLink 3", "NVLink 4")),
        ("mi300x", "NVLink", "", ("NVLink", "xGMI 3")),
        ("h100", "xGMI", "", ("xGMI", "h100")),
        ("h200-nvl", "HGX", "", ("NVSwitch", "h200-nvl")),
        ("h100", "4x H200/node", "", ("H200", "h100")),
        ("a100", "", "40GB", ("40 GB", "a100")),
    ],
)
def test_check_beside_refuses_what_cannot_be_and_names_both(
    name: str, interconnect: str, notes: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(AmbiguousGpuError) as caught:
        check_beside(GPUS[name], GPUS, interconnect, notes)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("name", "interconnect", "notes"),
    [
        ("h100", "DGX H100: NVLink4 900GB/s + 8x400G IB/node, PCIe Gen5 NICs", "40 GB of memory published"),
        ("h100-nvl", "NVLink bridges", "94GB"),
        ("gb200", "DGX GB200 NVL72", ""),
        ("mi300x", "Infinity Fabric, 8x400G RoCE", ""),
        ("l40s", "PCIe, 100GbE", "48GB"),
    ],
)
def test_check_beside_accepts_what_is(name: str, interconnect: str, notes: str) -> None:
    check_beside(GPUS[name], GPUS, interconnect, notes)


def test_find_gpu_follows_what_is_said_of_its_links() -> None:
    assert find_gpu("H100", GPUS, "NVLink4 900GB/s + 8x400G IB/node").name == "h100"
    assert find_gpu("A100 80GB", GPUS, "PCIe only").name == "a100-pcie"


@given(st.text(max_size=60) | st.tuples(st.sampled_from(list(NAMES)), st.text(max_size=20)).map(" ".join))
def test_find_gpu_reads_or_refuses_any_text(text: str) -> None:
    try:
        found = find_gpu(text, GPUS)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert found.name in GPUS


@pytest.mark.parametrize(
    ("product", "name", "is_it"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA H100 PCIe", "h100", False),
        ("NVIDIA H100 PCIe", "h100-pcie", True),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb", True),
        ("NVIDIA A100-SXM4-40GB", "a100", False),
        ("NVIDIA GH200 480GB", "h200", False),
        ("NVIDIA GH200 480GB", "gh200", True),
        ("AMD Instinct MI250X / MI250", "mi250", True),
    ],
)
def test_is_named_tells_cards_of_one_chip_apart(product: str, name: str, is_it: bool) -> None:
    assert is_named(product, GPUS[name]) == is_it


def test_cluster_may_spell_its_gpu(tmp_path: Path) -> None:
    for folder in ("gpus", "clusters"):
        (tmp_path / folder).mkdir()
    for path in Path("config/gpus").glob("*.yaml"):
        (tmp_path / "gpus" / path.name).write_text(path.read_text())
    cluster = tmp_path / "clusters" / "mine.yaml"
    text = "name: mine\ndevice: cuda\ngpu: {}\nnum_nodes: 1\ngpus_per_node: 8\nexecutor: local\n"
    cluster.write_text(text.format("NVIDIA H100 PCIe"))
    assert Catalogue(tmp_path).cluster("mine").gpu == "h100-pcie"
    cluster.write_text(text.format("H100"))
    with pytest.raises(UserError, match=r"mine.yaml: gpu 'H100' could be .*h100-pcie"):
        Catalogue(tmp_path).cluster("mine")
