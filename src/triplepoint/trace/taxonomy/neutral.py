"""Vendor-neutral names of kernels, to match kernels of NVIDIA traces with those of AMD traces for the same operation.

A neutral name states the operation, the layout of the operands if the caller chooses it, and the type. `gemm tn bf16`
stands for `nvjet_tst_128x64_64x10_4x1_v_bz_TNN` of cuBLAS and for `Cijk_Alik_Bljk_BBS_BH_...` of hipBLASLt. It leaves
out tiles, stages, algorithms, architectures and grids, which each library chooses. Names give no matrix sizes.
"""

import re
from functools import cache
from typing import Final, NamedTuple

from triplepoint.trace.taxonomy import Kernel, load_scheme, split_name


class Neutral(NamedTuple):
    """Vendor-neutral description of a kernel.

    Attributes:
        operation: Operation, such as `gemm`, `attention backward`, `elementwise add` or `comm all_reduce`.
        layout: For a GEMM, whether A and B are transposed in the terms of BLAS (`tn`). For attention, the head size
            (`d128`). Empty if the name does not state it.
        dtype: Type of the input: fp4, fp8, bf16, fp16, tf32, fp32, fp64, int8, int32 or int64; empty if unknown.
    """

    operation: str
    layout: str = ""
    dtype: str = ""

    def __str__(self) -> str:
        """Return the known parts, separated by spaces."""
        return " ".join(filter(None, self))


_DTYPE: Final = re.compile(
    r"(?P<tf32>tf32|xf32|xfloat32)"
    r"|(?P<fp4>fp4|e2m1|float4_e)"
    r"|(?P<fp8>fp8|float8|e4m3|e5m2|a8w8)"
    r"|(?P<bf16>bf16|bfloat16|bhalf|df16b)"
    r"|(?P<fp16>fp16|float16|half|df16_|(?<![a-z0-9])f16(?![0-9])|[sh]884gemm|h16816gemm|h1688gemm|hgemm)"
    r"|(?P<fp64>fp64|double|dgemm|d884gemm|(?<![a-z])f64(?![0-9]))"
    r"|(?P<int8>int8_t|s8_s8|i8816gemm|i16832gemm|_imma)"
    r"|(?P<fp32>fp32|(?<![a-z])f32(?!_tf32)|float(?![0-9])|sgemm|scudnn)"
)
_INTEGERS: Final = {"long": "int64", "int": "int32", "unsigned char": "int8", "signed char": "int8", "bool": "int8"}
_INTEGER = re.compile(rf"[<(](?P<type>{'|'.join(_INTEGERS)})\b(?![^<>(),]*[*&])")
_TENSILE = re.compile(r"cijk_a(?P<a>\w{3})_b(?P<b>\w{3})_(?P<dtype>f8n?|b8n?|f4|f6|i8|[a-z])", re.IGNORECASE)
_TENSILE_TYPES: Final = {
    **{"s": "fp32", "x": "tf32", "h": "fp16", "b": "bf16", "d": "fp64"},
    **{"f8": "fp8", "f8n": "fp8", "b8": "fp8", "b8n": "fp8", "f4": "fp4", "i8": "int8", "i": "int32"},
}
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?(?P<dtype>[a-z])\w*_(?P<layout>[TN]{2})[TN]\b")
_NVJET_TYPES: Final = {"t": "bf16", "h": "fp16", "s": "fp32", "q": "fp8", "o": "fp8", "d": "fp64"}
"""Types of A by their letter. Recorded names: `nvjet_tst` in bf16, `nvjet_hsh` in fp16, `nvjet_qqtst` in fp8."""
_BLAS_LAYOUT = re.compile(r"_([tn]{2})(?:_|\b)", re.IGNORECASE)
_CK_USHORT = re.compile(r"(?:I|Li\d+E|S\d*_)tt")
"""Composable Kernel stores bf16 as unsigned short, which is `t` in a mangled name."""

_GEMM_KINDS: Final = frozenset(("dense", "nvjet", "tensile", "ck", "triton", "fp8"))
"""Kinds of GEMM that name the library or the type, and are no part of the operation."""
_BACKWARD = re.compile(r"bwd|backward|bprop|_bw_|(?<!wino)grad|gammabeta|dgamma")
_DIRECTED: Final = frozenset(("norm", "conv", "softmax", "loss", "embedding"))
_HEAD = re.compile(
    r"(?:traits|kernel)<\(?(?:int\))?(?P<traits>32|64|96|128|192|256|512)\b"
    r"|(?:_hd|_d|headdim_?|head_?size_?)(?P<word>32|64|80|96|128|192|256|512)(?!\d)"
    r"|[a-z0-9]H(?P<trtllm>32|64|80|96|128|192|256)(?=Paged|Contig|Packed|Q|Var|Sep)",
)
_TRITON_FUSED = re.compile(r"^triton_[a-z]+_(?:fused_)?_*(?P<ops>\w*?)_?\d*$")

_WRAPPERS = re.compile(
    r"((vectorized|unrolled|legacy|templated)_)*elementwise_kernel\w*|(opmath_)?gpu_kernel\w*|operator|lambda"
    r"|(a|b)?(unary|binary)functor|opmath_\w*|tensoriterator\w*|kernel|kernel2|device_kernel"
    r"|multi_tensor_apply_kernel|tensorlist\w*|reduce_kernel|reduceop|func_wrapper_t|native|internal|binary_internal"
    r"|at|c10|std|void|const|thrust|array|detail|cuda|hip|aten|cub|hipcub|rocprim|modern|anonymous|namespace"
    r"|float|double|half|int|long|bool|unsigned|char|short|(__nv_|__hip_)?bfloat16(_t)?|global__n|cudnn\w*|cutlass\w*"
)
_AFFIXES = re.compile(
    r"^(cuda_?functor(onself|onother)?_|launch_)|(_?(kernel|cuda|impl|kernelimpl|functor|ops|gpu|scalar|nocast))+$"
)
_SIZES = re.compile(r"_\d+x\d+.*$|_\d+$|_v\d+\w*$|\dd$")
_SAME: Final = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"^(nchwtonhwc|nhwctonchw|(batched_)?transpose(_\w+)?|permute_?\w*)$", "transpose"),
        (r"^(catarray\w*|cat(_cuda)?)$", "cat"),
        (
            r"^(direct_copy|copy_device_to_device|(b?float(16|32)|half)_copy|copyfunctor|subtensoropwithcasttensor)$",
            "copy",
        ),
        (r"^(mulscalar)$", "mul"),
        (r"^subtensoropwith$", "fill"),
    )
)
"""Patterns of the vendors' names of an operation, and its neutral name. `SubTensorOp` of MIOpen casts and fills."""
_WORD = re.compile(r"[a-z_]\w*")
_VERBATIM: Final = frozenset(("elementwise", "reduction", "index", "quant", "moe", "other", "triton"))
"""Classes whose kind is too general for an operation: the name of the function is part of it."""


@cache
def neutral(name: str, kernel: Kernel | None = None) -> Neutral:
    """Return the vendor-neutral description of a kernel.

    Args:
        name: Name of the kernel in the trace.
        kernel: Class and kind if more is known than the name (a collective by its arguments). If None, those of the
            default scheme.
    """
    cls, kind = kernel or load_scheme().device(name)
    if cls in ("comm", "memory"):
        return Neutral(_join_words(cls, kind))
    if cls == "gemm":
        return _gemm(name, kind)
    lowered = name.lower()
    direction = "backward" if _BACKWARD.search(lowered) else "forward"
    if cls == "triton":
        fused = _TRITON_FUSED.match(name)
        return Neutral(_join_words("fused", fused["ops"] if fused and fused["ops"] else _function(name)))
    if cls == "attention":
        return Neutral(_join_words(cls, kind), _head_size(name), _dtype(name))
    if cls in _DIRECTED and kind not in ("forward", "backward", "data_gradient", "weight_gradient"):
        kind = f"{kind} {direction}"
    if cls in _VERBATIM:
        kind = _function(name) if cls in ("elementwise", "reduction", "other") else _join_words(kind, _function(name))
    return Neutral(_join_words(cls, kind), "", _dtype(name))


def neutral_name(name: str, kernel: Kernel | None = None) -> str:
    """Return the vendor-neutral name of a kernel. Arguments as for `neutral`."""
    return str(neutral(name, kernel))


def _join_words(*words: str) -> str:
    return " ".join(word for word in words if word and word != "unknown")


def _gemm(name: str, kind: str) -> Neutral:
    operation = _join_words("gemm", "" if kind in _GEMM_KINDS else kind)
    if re.search(r"split_?k_?reduce", name, re.IGNORECASE):
        return Neutral("gemm split_k_reduce", "", _dtype(name))
    if tensile := _TENSILE.match(name):
        # Indices: i and j are those of C, l is summed over, k is the batch. The first index is contiguous.
        layout = ("t" if tensile["a"][0] == "l" else "n") + ("n" if tensile["b"][0] == "l" else "t")
        return Neutral(operation, layout, _TENSILE_TYPES.get(tensile["dtype"].lower(), ""))
    if nvjet := _NVJET.match(name):
        return Neutral(operation, nvjet["layout"].lower(), _NVJET_TYPES.get(nvjet["dtype"], ""))
    blas = _BLAS_LAYOUT.search(name)
    return Neutral(operation, blas[1].lower() if blas else "", _dtype(name))


def _dtype(name: str) -> str:
    lowered = name.lower()
    # CUTLASS names no type if it computes float32 as the 19-bit type of the tensor cores (TF32) on Ampere.
    if "tf32" in lowered or re.search(r"tensorop_s1688gemm_\d", lowered):
        return "tf32"
    if dtype := _DTYPE.search(lowered):
        return str(dtype.lastgroup)
    if name.startswith("_Z"):
        return "bf16" if _CK_USHORT.search(name) else ""
    integer = _INTEGER.search(lowered)
    return _INTEGERS[integer["type"]] if integer else ""


def _head_size(name: str) -> str:
    head = _HEAD.search(name)
    return f"d{next(filter(None, head.groups()))}" if head else ""


def _function(name: str) -> str:
    """Return the function that a kernel computes: its name, or the first name in a template that launches it."""
    function, whole = split_name(name)
    last = function.rpartition("::")[2]
    words = _WORD.findall(whole) if _WRAPPERS.fullmatch(last) or not last else [last, *_WORD.findall(whole)]
    for word in words:
        if _WRAPPERS.fullmatch(word):
            continue
        if stem := _AFFIXES.sub("", _SIZES.sub("", word)).strip("_"):
            return next((known for pattern, known in _SAME if pattern.search(stem)), stem)
    return ""
