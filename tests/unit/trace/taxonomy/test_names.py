"""Reading what of a kernel's name counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.trace.taxonomy import split_name


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void at::native::(anonymous namespace)::softmax_warp_forward<float, 8>(float*, int)", "softmax_warp_forward"),
        ("void <unnamed>::multimem_all_reduce_kernel<(int)16>(x)", "multimem_all_reduce_kernel"),
        ("cleanup(float*, float*)", "cleanup"),
        ("attn_fwd.kd", "attn_fwd"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(x)", "internal::gemvx::kernel"),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::Half>::exists, void>::type vllm::rms_norm<x>",
            "vllm::rms_norm",
        ),
        ("_ZN7ck_tile6kentryILi2ENS_13FmhaBwdDQDKDVKernelINS_3FooE", "ck_tile::kentry"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1EEEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
        ("_Z11some_kernelIfEvPT_", "some_kernel"),
        ("_ZN2at6native12_GLOBAL__N_110layer_normIfEEv", "at::native::layer_norm"),
        ("_Z", ""),
    ],
)
def test_split_function_name(name: str, function: str) -> None:
    assert split_name(name).function == function


def test_split_mangled_arguments() -> None:
    name = "_ZN7ck_tile6kentryILi128ENS_13FmhaFwdKernelINS_8sequenceIJLi12ELi32EEEEEEEv"
    assert split_name(name).whole == "ck_tile kentry fmhafwdkernel sequence"


@given(st.text(max_size=50) | st.from_regex(r"_ZN?K?([0-9]{1,3}[a-zA-Z_]{0,9}|L?[a-z]|S_|I|E){0,12}", fullmatch=True))
def test_split_any_text(name: str) -> None:
    parts = split_name(name)
    assert parts.whole == parts.whole.lower()
    assert parts.function.replace("::", " ") in parts.whole.replace("::", " ")
