"""Recipes of 8-bit and 4-bit training: scales, cost of casting, speed of GEMMs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from triplepoint.config.software import Fp8Recipe


@dataclass(frozen=True)
class Recipe:
    """One recipe, as the kernels of Transformer Engine and torchao implement it.

    Attributes:
        gemm_slowdown: GEMM time over that with one scale per tensor. Unit: 1.
        reads_first: Whether a pass before the cast finds the largest value.
        norm_casts: Whether a norm writes fp8 itself.
        transpose_from: How the transpose for weight-gradient GEMMs is made: from the fp8 numbers (`transpose`), by the
            same cast (`together`), or by a second cast of the 16-bit numbers (`again`).
        scale_bytes: Bytes of scales per number. Unit: byte.
        number_bytes: Bytes of one number. Unit: byte.
    """

    gemm_slowdown: float = 1.0
    reads_first: bool = False
    norm_casts: bool = False
    transpose_from: Literal["transpose", "together", "again"] = "transpose"
    scale_bytes: float = 0.0
    number_bytes: float = 1.0

    def cast_bytes(self, element: int, with_transpose: bool) -> float:
        """Return the bytes that a cast reads and writes per number.

        Args:
            element: Bytes of a number before the cast.
            with_transpose: Whether the transpose is written too.
        """
        written = self.number_bytes + self.scale_bytes
        if not with_transpose:
            return element + written
        return element + written + (element * (self.transpose_from == "again") + written)

    def transpose_bytes(self, element: int) -> float:
        """Return the bytes that making the transpose of cast numbers reads and writes per number.

        Args:
            element: Bytes of a number before the cast.
        """
        read = {"transpose": self.number_bytes, "together": 0.0, "again": element}[self.transpose_from]
        return read + self.number_bytes + self.scale_bytes


RECIPES: Mapping[Fp8Recipe, Recipe] = MappingProxyType(
    {
        "delayed": Recipe(norm_casts=True),
        "tensorwise": Recipe(reads_first=True),
        "rowwise": Recipe(1.4, transpose_from="again"),
        "blockwise": Recipe(1.2, transpose_from="together", scale_bytes=4 / 128),
        "mxfp8": Recipe(norm_casts=True, transpose_from="together", scale_bytes=1 / 32),
    }
)
"""Recipes by name. Scales are per tensor from earlier steps, per tensor, per row, per 128 numbers (of weights per 128 x
128), per 32 numbers.

Source:
    NVIDIA/TransformerEngine docs/examples/fp8_primer.ipynb, common/recipe and pytorch/module/layernorm_linear.py
    (formats that a norm writes); pytorch/ao torchao/float8/README.md. GEMMs with scales per row: fitted to 6,424
    against 7,186 tokens/s with scales per tensor (pytorch/torchtitan 7a04053, Llama 3 8B on 8 H100). Per block: fitted
    to 330 against 338 TFLOP/s per tensor (NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md, 25.09,
    DeepSeek-V3 on 1,024 H100). MXFP8: assumed as fast as per tensor, since Blackwell multiplies with its scales.
"""

NVFP4 = Recipe(reads_first=True, transpose_from="together", scale_bytes=1 / 16, number_bytes=0.5)
"""Recipe of 4-bit training: an 8-bit scale per 16 numbers and a 32-bit scale per tensor, which an earlier pass finds.

Source:
    arXiv:2509.25149, section 3; NVIDIA/TransformerEngine common/recipe, NVFP4BlockScaling. Random Hadamard transforms
    of operands of weight gradients are assumed to be part of the cast.
"""
