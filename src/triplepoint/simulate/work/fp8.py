"""Recipes of training in 8 and 4 bits: what scales are of, what casting costs, how fast GEMMs are."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from triplepoint.config.software import Fp8Recipe


@dataclass(frozen=True)
class Recipe:
    """One recipe, as kernels of Transformer Engine and torchao do it.

    Attributes:
        gemm_slowdown: Time of a GEMM over one with a scale for each tensor. Unit: 1.
        reads_first: Whether a pass finds the largest value before the cast.
        norm_casts: Whether a norm writes fp8 at once.
        casts_across: How the other direction, whose GEMM multiplies along tokens, comes about: from the fp8 numbers
            (`transpose`), by the same cast (`together`), or by another cast of the 16-bit numbers (`again`).
        scale_bytes: Of scales for each number. Unit: byte.
        number_bytes: Of a number. Unit: byte.
    """

    gemm_slowdown: float = 1.0
    reads_first: bool = False
    norm_casts: bool = False
    casts_across: str = "transpose"
    scale_bytes: float = 0.0
    number_bytes: float = 1.0

    def cast_bytes(self, element: int, across: bool) -> float:
        """Return what a cast moves for each number of `element` bytes, its copy across included. Unit: byte."""
        one = self.number_bytes + self.scale_bytes
        if not across:
            return element + one
        return element + one + (element * (self.casts_across == "again") + one)

    def across_bytes(self, element: int) -> float:
        """Return what the copy across of what is cast already moves for each number. Unit: byte."""
        read = {"transpose": self.number_bytes, "together": 0.0, "again": element}[self.casts_across]
        return read + self.number_bytes + self.scale_bytes


RECIPES: Mapping[Fp8Recipe, Recipe] = MappingProxyType(
    {
        "delayed": Recipe(norm_casts=True),
        "tensorwise": Recipe(reads_first=True),
        "rowwise": Recipe(1.4, casts_across="again"),
        "blockwise": Recipe(1.2, casts_across="together", scale_bytes=4 / 128),
        "mxfp8": Recipe(norm_casts=True, casts_across="together", scale_bytes=1 / 32),
    }
)
"""By name. Scales: of a tensor from the steps before, of a tensor, of a row, of 128 numbers (of weights 128 times 128),
of 32 numbers.

Source:
    NVIDIA/TransformerEngine docs/examples/fp8_primer.ipynb, common/recipe and pytorch/module/layernorm_linear.py (what
    a norm writes); pytorch/ao torchao/float8/README.md. GEMMs by row: fitted to 6,424 against 7,186 tokens/s of tensors
    (pytorch/torchtitan 7a04053, Llama 3 8B on 8 H100). By block: fitted to 330 against 338 TFLOP/s of tensors
    (NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md, 25.09, DeepSeek-V3 on 1,024 H100). MXFP8: assumed
    as fast as by tensor, since Blackwell multiplies with its scales.
"""

NVFP4 = Recipe(reads_first=True, casts_across="together", scale_bytes=1 / 16, number_bytes=0.5)
"""Training in 4 bits: a scale of 8 bits for 16 numbers and one of 32 bits for a tensor, which a pass before finds.

Source:
    arXiv:2509.25149, section 3; NVIDIA/TransformerEngine common/recipe, NVFP4BlockScaling. Random Hadamard transforms
    of what weight gradients read are taken as part of the cast.
"""
