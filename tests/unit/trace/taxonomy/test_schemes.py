"""The mappings of others, and rules a user adds."""

import pickle
import re
from pathlib import Path

import pytest

from tests.unit.trace.taxonomy.test_default_scheme import LABELLED
from triplepoint.errors import UserError
from triplepoint.trace.taxonomy import CATEGORIES, SCHEMES, load_scheme


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_gives_every_name_a_category(scheme: str) -> None:
    assert {load_scheme(scheme).device(name).category for _, _, name in LABELLED} <= set(CATEGORIES)


def test_load_scheme_unknown_name_is_refused() -> None:
    with pytest.raises(UserError, match="'papr' .did you mean 'paper'"):
        load_scheme("papr")


PAPER = [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", "AllReduce", "comm"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "ReduceScatter", "comm"),
    ("ncclDevKernel_AllGather_RING_LL(x)", "AllGather", "comm"),
    ("ncclDevKernel_SendRecv(x)", "SendRecv", "comm"),
    ("ncclDevKernel_Broadcast_RING_LL(x)", "SendRecv", "comm"),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "Memory/Elementwise", "compute"),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "Memory/Elementwise", "compute"),
    ("kuserbuffers_pushsend(int*)", "Memory/Elementwise", "compute"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(x)", "Memory/Elementwise", "compute"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "Compute (MatMul)", "compute"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31", "Compute (MatMul)", "compute"),
    ("triton_poi_fused_add_mul_0", "Memory/Elementwise", "compute"),
    ("triton_poi_fused_silu_3", "Other", "compute"),
    ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "Other", "compute"),
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128> >(x)", "Memory/Elementwise", "compute"),
    ("void ln_fwd_tuned_kernel<x>(x)", "Memory/Elementwise", "compute"),
    ("layer_norm_fwd", "Layer Norm", "compute"),
    ("Memcpy HtoD (Pageable -> Device)", "memory", "memory"),
]


@pytest.mark.parametrize(("name", "cls", "category"), PAPER, ids=[name[:50] for name, _, _ in PAPER])
def test_paper_scheme_published_mapping(name: str, cls: str, category: str) -> None:
    kernel = load_scheme("paper").device(name)
    assert (kernel.cls, kernel.category) == (cls, category)


def hta_type(name: str) -> str:
    """HolisticTraceAnalysis 0.6, written down from its description in hta.yaml, with `re.match` as it uses."""
    if re.match(r"nccl|hip|hccl|.*ncclKernel", name):
        return "communication"
    if re.match(r"(hip)?Memcpy|(hip)?Memset|dma", name):
        return "memory"
    runtime = "cuda.*LaunchKernel|runFunction|job_exe|packet|pe_exe|cpum_exe_subgraph|collective_subgraph_execution"
    if re.match(rf".*(Memcpy|Memset|dma|Sync)|Stream Wait Event|{runtime}", name):
        return "neither"
    return "computation"


@pytest.mark.parametrize(
    "name",
    [name for _, _, name in LABELLED]
    + [
        "",
        "hipMemcpyAsync",
        "Context Sync",
        "Stream Wait Event",
        "cudaLaunchKernel",
        "dma_copy",
        "void f(Memset)",
        "NCCL",
    ],
)
def test_hta_scheme_equals_its_patterns(name: str) -> None:
    assert load_scheme("hta").device(name).cls == hta_type(name)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "comm"),
        ("void deep_ep::intranode::dispatch<2>(x)", "compute"),
        ("Memcpy DtoD (Device -> Device)", "memory"),
        ("Event Sync", "memory"),
        ("gemm", "compute"),
    ],
)
def test_hta_scheme_categories(name: str, category: str) -> None:
    assert load_scheme("hta").device(name).category == category


@pytest.mark.parametrize("scheme", ["paper", "hta"])
def test_schemes_of_others_keep_classes_of_operators(scheme: str) -> None:
    assert load_scheme(scheme).host("gloo:all_reduce") == ("comm", "all_reduce")


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def test_extra_rules_stand_before_the_built_in_ones(extra: Path) -> None:
    extra.write_text("device:\n  - [ssm, scan, 'SelectiveScan|my_gemm']\nhost:\n  - [norm, mine, 'aten::mul$']\n")
    scheme = load_scheme("default", extra)
    assert scheme.device("void MY_GEMM_kernel<float>(x)") == ("ssm", "scan")
    assert scheme.device("void f<float, selectivescan>(x)") == ("ssm", "scan")
    assert scheme.device("ampere_sgemm_128x64_nn") == ("gemm", "dense")
    assert scheme.device("void MY_GEMM_kernel<float>(x)").category == "compute"
    assert scheme.host("aten::mul") == ("norm", "mine")
    assert scheme.host("aten::mm") == ("gemm", "dense")


def test_scheme_travels_to_another_process(extra: Path) -> None:
    extra.write_text("device:\n  - [ssm, scan, selective_scan]\n")
    scheme = pickle.loads(pickle.dumps(load_scheme("paper", extra)))
    assert scheme.device("selective_scan_fwd_kernel") == ("ssm", "scan")
    assert scheme.device("nvjet_tst_192x8") == ("Other", "unknown")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: []", "unknown key 'devices' .did you mean 'device'"),
        ("device: gemm", "device: expected a list of rules .*, found str"),
        ("device: [[gemm, dense]]", r"device, rule 1: expected \[class, kind, 'pattern'\], found \['gemm', 'dense'\]"),
        ("device:\n  - [gemm, dense, a]\n  - [gemm, dense, 7]", "device, rule 2: expected"),
        ("host: [[gemm, dense, '(a']]", "host, rule 1: pattern '.a' is not a regular expression: missing"),
        ("host: [[gemm, dense, 'a*']]", r"host, rule 1: pattern 'a\*' matches every name"),
        ("device: [[gemms, dense, a]]", "device, rule 1: class 'gemms' is not known, did you mean 'gemm'"),
        ("device: [[My-Class, dense, a]]", "device, rule 1: class 'My-Class': expected lower-case letters"),
        ("device: [[ssm, Scan 1, a]]", "device, rule 1: kind 'Scan 1': expected lower-case letters"),
        ("- [ssm, scan, a]", "expected a mapping of keys to values, found a list"),
    ],
)
def test_extra_rules_damaged_are_refused_in_one_line(extra: Path, text: str, message: str) -> None:
    extra.write_text(text)
    with pytest.raises(UserError, match=rf"^{re.escape(str(extra))}: {message}") as error:
        load_scheme("default", extra)
    assert "\n" not in str(error.value)


def test_extra_rules_missing_file_is_refused(extra: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_scheme("default", extra)
