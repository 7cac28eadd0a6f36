"""Linear layers split over tensor parallel ranks, norms, and residual additions."""

from dataclasses import dataclass
from typing import Literal

from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.layer_parts import (
    FP32_BYTES,
    MASK_BYTES,
    Operations,
    Part,
    Share,
    Weights,
    cast,
    gather_sequence,
    gemm,
    reduce_partials,
    streaming,
)

Split = Literal["column", "row", "none"]

_NORM_PASSES_BACKWARD = 3
"""Arrays that the backward pass of a norm touches: it reads the input and the gradient and writes the gradient."""


@dataclass(frozen=True)
class Linear:
    """A linear layer as one rank holds it.

    Attributes:
        inputs: Input width on the rank.
        outputs: Output width on the rank.
        split: `column`: output split over tensor parallel ranks, input whole; `row`: input split, output whole; `none`:
            every rank holds the whole layer and computes its part of the sequence.
        has_bias: Whether it adds a bias.
        is_wide: Whether fp8 training leaves it in bf16.
        name: Name in Megatron-LM, by which LoRA targets are chosen.
        keeps_input: Whether its input is kept for the weight gradient; False if another layer keeps the same tensor.
        is_beside: Whether it runs in a parallel block (attention beside feed-forward) whose other half communicates: it
            gathers the common input, or reduces the sum of both outputs.
    """

    inputs: int
    outputs: int
    split: Split
    has_bias: bool = False
    is_wide: bool = False
    name: str = ""
    keeps_input: bool = True
    is_beside: bool = False


def linear(share: Share, layer: Linear) -> Part:
    """Return a linear layer, which keeps its input for the weight gradient.

    A column-parallel layer gathers its input in the forward pass, and again in the backward pass for the weight
    gradient. Its input gradient is reduced over the ranks, overlapped with the weight gradient. A row-parallel layer
    reduces its output in the forward pass and gathers the gradient in the backward pass.

    Source:
        Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
    """
    is_quantized = share.is_quantized and not layer.is_wide
    operations = _LinearOperations(share, layer, is_quantized)
    bias = layer.outputs * layer.has_bias
    saved = operations.input_element * layer.inputs * (share.tokens if layer.split == "row" else share.split_tokens)
    saved *= layer.keeps_input and (_has_adapter(share, layer) or not share.has_adapters)
    matrix = float(layer.inputs * layer.outputs)
    weights = Weights(shared=matrix) if layer.split == "none" else Weights(split=matrix)
    weights += Weights(split=float(bias)) if layer.split == "column" else Weights(shared=float(bias))
    backward_weight = () if share.has_adapters else operations.weight_gradient()
    base = Part(operations.forward(), operations.input_gradient(), backward_weight, float(saved), weights)
    return _with_adapter(share, layer, operations.tokens, base) if _has_adapter(share, layer) else base


def _has_adapter(share: Share, layer: Linear) -> bool:
    targets = share.job.lora_targets
    return share.has_adapters and not layer.is_wide and (targets is None or layer.name in targets)


class _LinearOperations:
    """Kernels and communication of one linear layer."""

    def __init__(self, share: Share, layer: Linear, is_quantized: bool) -> None:
        self.share, self.layer, self.is_quantized = share, layer, is_quantized
        self.element = share.element
        self.tokens = share.split_tokens if layer.split == "none" else share.tokens
        self.input_element = share.gemm_element if is_quantized else float(share.element)
        self.precision = share.gemm_precision if is_quantized or not share.is_quantized else share.wide_precision

    def forward(self) -> Operations:
        """Return the forward pass."""
        share, layer = self.share, self.layer
        gemm_kernel = self._gemm((self.tokens, layer.outputs, layer.inputs), "forward", self.element)
        if layer.split != "row":
            casts = () if share.recipe.norm_casts or not layer.keeps_input else self._cast_norm_output(layer.inputs)
            gathers = self._gather(layer.inputs) if layer.split == "column" else ()
            return (*casts, *gathers, gemm_kernel)
        casts = self._cast(layer.inputs, with_transpose=False)
        reductions = () if layer.is_beside else reduce_partials(share, share.tokens * layer.outputs * self.element)
        return (*casts, gemm_kernel, *reductions)

    def input_gradient(self) -> Operations:
        """Return the backward pass up to the gradient of the input."""
        share, layer = self.share, self.layer
        gemm_kernel = self._gemm((self.tokens, layer.inputs, layer.outputs), "backward", self.element)
        # Only the weight gradient reads the transpose, and frozen layers have none.
        casts = self._cast(layer.outputs, with_transpose=not share.has_adapters)
        if layer.split == "none":
            return (*casts, gemm_kernel)
        if layer.split == "row":
            return (*self._gather(layer.outputs), *casts, gemm_kernel)
        gathers = () if share.has_adapters else self._gather(layer.inputs, overlapped=True)
        overlapped = share.software.overlaps_input_gradient and not share.has_adapters
        reductions = reduce_partials(share, share.tokens * layer.inputs * self.element, overlapped)
        return (*gathers, *casts, gemm_kernel, *reductions)

    def weight_gradient(self) -> Operations:
        """Return the gradients of weights and bias."""
        share, layer = self.share, self.layer
        # The GEMM accumulates: it reads and writes the gradient.
        gemm_kernel = self._gemm((layer.outputs, layer.inputs, self.tokens), "weight", 2 * share.gradient_element)
        transposes = self._transpose(layer.inputs)
        if not layer.has_bias:
            return (*transposes, gemm_kernel)
        return (*transposes, gemm_kernel, streaming("elementwise", "bias", self.tokens * layer.outputs * self.element))

    def _gemm(self, shape: tuple[int, int, int], kind: str, output_element: int) -> Kernel:
        return gemm(shape, kind, self.precision, (self.input_element, self.input_element, output_element))

    def _gather(self, width: int, overlapped: bool = False) -> Operations:
        if self.layer.is_beside:
            return ()
        return gather_sequence(self.share, self.share.tokens * width * self.input_element, overlapped)

    def _cast(self, width: int, with_transpose: bool) -> Operations:
        """Return the cast to fp8: it reads 16 bits and writes 8, twice if the transpose is written too.

        Source:
            NVIDIA/TransformerEngine, cast_transpose kernels; Hopper multiplies fp8 only with both inputs along k.
        """
        return cast(self.share, self.tokens * width, with_transpose) if self.is_quantized else ()

    def _cast_norm_output(self, width: int) -> Operations:
        """Return the cast of the 16-bit output of a norm, before it is gathered."""
        return cast(self.share, self.share.split_tokens * width, with_transpose=False) if self.is_quantized else ()

    def _transpose(self, width: int) -> Operations:
        if not self.is_quantized:
            return ()
        num_bytes = self.tokens * width * self.share.recipe.transpose_bytes(self.element)
        return (streaming("elementwise", "cast", num_bytes),)


def _with_adapter(share: Share, layer: Linear, tokens: int, base: Part) -> Part:
    """Return a frozen layer with a LoRA adapter parallel to it: down to the rank, up to the output, addition.

    Source:
        Hu et al. 2021, arXiv:2106.09685.
    """
    rank, element = share.job.lora_rank, share.element
    down, up = (tokens, rank, layer.inputs), (tokens, layer.outputs, rank)
    elements = (element, element, element)
    precision = share.wide_precision
    forward = (
        gemm(down, "forward", precision, elements),
        gemm(up, "forward", precision, elements),
        streaming("elementwise", "adapter", 3 * tokens * layer.outputs * element),
    )
    backward = (
        gemm((tokens, rank, layer.outputs), "backward", precision, elements),
        gemm((tokens, layer.inputs, rank), "backward", precision, elements),
        streaming("elementwise", "adapter", 3 * tokens * layer.inputs * element),
    )
    weight = (
        gemm((layer.outputs, rank, tokens), "weight", precision, elements),
        gemm((rank, layer.inputs, tokens), "weight", precision, elements),
    )
    return Part(
        base.forward + forward,
        backward + base.backward_input,
        weight,
        base.saved + tokens * rank * element,
        base.weights,
        float(rank * (layer.inputs + layer.outputs)),
    )


def norm(share: Share, is_quantized_output: bool, width: int | None = None) -> Part:
    """Return a norm, which keeps its input, over the part of the sequence on the rank.

    Args:
        share: Share of the rank.
        is_quantized_output: Whether only GEMMs read the output, so that a fused norm may write it in fp8.
        width: Normalized width; None for the width of the model.
    """
    model = share.job.model
    width = width or model.hidden_size
    num_elements = share.split_tokens * width
    weights = Weights(shared=float(width * (2 if model.normalization == "layernorm" else 1)))
    if not share.software.fuses_norms:
        return _unfused_norm(share, num_elements, weights)
    written = (
        share.gemm_element if is_quantized_output and share.is_quantized and share.recipe.norm_casts else share.element
    )
    return Part(
        (streaming("norm", "forward", num_elements * (share.element + written)),),
        (streaming("norm", "backward", num_elements * share.element * _NORM_PASSES_BACKWARD),),
        saved=float(num_elements * share.element),
        weights=weights,
    )


def _unfused_norm(share: Share, num_elements: int, weights: Weights) -> Part:
    """Return a norm whose steps are separate kernels with fp32 intermediates; it keeps its fp32 input and result.

    Forward: to fp32, square, mean, multiply, to 16 bits, multiply by the weight. Backward: the gradients of each.
    Source:
        pytorch/pytorch v2.5 aten/src/ATen/native/layer_norm.cpp, rms_norm_symint; bytes counted by hand.
    """
    narrow, wide = share.element, FP32_BYTES
    forward = (narrow + wide) + 2 * wide + wide + 2 * wide + (wide + narrow) + 2 * narrow
    of_weight, of_products, of_square = 7 * narrow, 6 * wide, 2 * wide + 3 * wide
    backward = of_weight + (narrow + wide) + of_products + of_square + (wide + narrow)
    return Part(
        (streaming("norm", "forward", num_elements * forward),),
        (streaming("norm", "backward", num_elements * backward),),
        saved=float(num_elements * (wide + narrow)),
        weights=weights,
    )


def residual(share: Share) -> Part:
    """Return the addition of a branch to the residual stream, with dropout of the branch if the software has it.

    The backward pass adds the gradients of branch and stream, and reads the dropout mask if there is one.
    """
    num_elements = share.split_tokens * share.job.model.hidden_size
    mask = MASK_BYTES * share.software.has_dropout
    backward = [streaming("elementwise", "add", 3 * num_elements * share.element)]
    if mask:
        backward.append(streaming("elementwise", "dropout", num_elements * (2 * share.element + mask)))
    return Part(
        (streaming("elementwise", "add", num_elements * (3 * share.element + mask)),),
        tuple(backward),
        saved=float(num_elements * mask),
    )
