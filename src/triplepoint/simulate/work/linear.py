"""Linear layers split over tensor parallel ranks, and what stands between them: norms, residual adds."""

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
    gather,
    gemm,
    scatter,
    streaming,
)

Split = Literal["column", "row", "none"]

_NORM_PASSES_BACKWARD = 3
"""Arrays a norm touches in its backward pass: reads its input and the gradient, writes the gradient."""


@dataclass(frozen=True)
class Linear:
    """A linear layer as one rank has it.

    Attributes:
        inputs: Width of its input on the rank.
        outputs: Width of its output on the rank.
        split: `column`: the output is split over tensor parallel ranks, the input whole; `row`: the other way round;
            `none`: every rank has all of it, for its part of the sequence.
        has_bias: Whether it adds a bias.
        is_wide: Whether fp8 training leaves it in bf16.
        name: As Megatron-LM calls it; what adapters are asked for by.
        keeps_input: Whether its input is kept for the weight gradient; not where another layer keeps the same.
        is_beside: Whether a layer of the same kind in the block beside it has the communication: brings the input of
            both together, or adds up the sum of both outputs.
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
    """Return a linear layer; its input is kept for the weight gradient.

    A column-parallel layer gathers its input in forward, and once more in backward for the weight gradient; its input
    gradient is added up over the ranks, overlapped with the weight gradient. A row-parallel layer adds up its output in
    forward and gathers the gradient in backward.

    Source:
        Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
    """
    is_quantized = share.is_quantized and not layer.is_wide
    ops = _LinearLayer(share, layer, is_quantized)
    bias = layer.outputs * layer.has_bias
    kept = ops.input_element * layer.inputs * (share.tokens if layer.split == "row" else share.split_tokens)
    kept *= layer.keeps_input and (_has_adapter(share, layer) or not share.has_adapters)
    matrix = float(layer.inputs * layer.outputs)
    weights = Weights(shared=matrix) if layer.split == "none" else Weights(split=matrix)
    weights += Weights(split=float(bias)) if layer.split == "column" else Weights(shared=float(bias))
    backward_weight = () if share.has_adapters else ops.weight_gradient()
    base = Part(ops.forward(), ops.input_gradient(), backward_weight, float(kept), weights)
    return _with_adapter(share, layer, ops.tokens, base) if _has_adapter(share, layer) else base


def _has_adapter(share: Share, layer: Linear) -> bool:
    targets = share.job.lora_targets
    return share.has_adapters and not layer.is_wide and (targets is None or layer.name in targets)


class _LinearLayer:
    """The kernels and communication of one linear layer."""

    def __init__(self, share: Share, layer: Linear, is_quantized: bool) -> None:
        self.share, self.layer, self.is_quantized = share, layer, is_quantized
        self.element = share.element
        self.tokens = share.split_tokens if layer.split == "none" else share.tokens
        self.input_element = share.gemm_element if is_quantized else float(share.element)
        self.precision = share.gemm_precision if is_quantized or not share.is_quantized else share.wide_precision

    def forward(self) -> Operations:
        share, layer = self.share, self.layer
        gemm = self._gemm((self.tokens, layer.outputs, layer.inputs), "forward", self.element)
        if layer.split != "row":
            before = () if share.recipe.norm_casts or not layer.keeps_input else self._cast_split(layer.inputs)
            gathered = self._gather(layer.inputs) if layer.split == "column" else ()
            return (*before, *gathered, gemm)
        cast = self._cast(layer.inputs, transposed=False)
        added = () if layer.is_beside else scatter(share, share.tokens * layer.outputs * self.element)
        return (*cast, gemm, *added)

    def input_gradient(self) -> Operations:
        share, layer = self.share, self.layer
        gemm = self._gemm((self.tokens, layer.inputs, layer.outputs), "backward", self.element)
        # The transpose is of the weight gradient, which frozen layers have none of.
        cast = self._cast(layer.outputs, transposed=not share.has_adapters)
        if layer.split == "none":
            return (*cast, gemm)
        if layer.split == "row":
            return (*self._gather(layer.outputs), *cast, gemm)
        again = () if share.has_adapters else self._gather(layer.inputs, overlapped=True)
        overlapped = share.software.overlaps_input_gradient and not share.has_adapters
        return (*again, *cast, gemm, *scatter(share, share.tokens * layer.inputs * self.element, overlapped))

    def weight_gradient(self) -> Operations:
        share, layer = self.share, self.layer
        # The GEMM adds to the gradient that is there: it reads and writes it.
        gemm = self._gemm((layer.outputs, layer.inputs, self.tokens), "weight", 2 * share.gradient_element)
        transposed = self._transpose(layer.inputs)
        if not layer.has_bias:
            return (*transposed, gemm)
        return (*transposed, gemm, streaming("elementwise", "bias", self.tokens * layer.outputs * self.element))

    def _gemm(self, shape: tuple[int, int, int], kind: str, output_element: int) -> Kernel:
        return gemm(shape, kind, self.precision, (self.input_element, self.input_element, output_element))

    def _gather(self, width: int, overlapped: bool = False) -> Operations:
        if self.layer.is_beside:
            return ()
        return gather(self.share, self.share.tokens * width * self.input_element, overlapped)

    def _cast(self, width: int, transposed: bool) -> Operations:
        """Return the cast to fp8: reads 16 bits, writes 8, twice where the transpose is written too.

        Source:
            NVIDIA/TransformerEngine, cast_transpose kernels; Hopper multiplies fp8 only with both inputs along k.
        """
        return cast(self.share, self.tokens * width, transposed) if self.is_quantized else ()

    def _cast_split(self, width: int) -> Operations:
        """Return the cast of what a norm wrote in 16 bits, before it is gathered."""
        return cast(self.share, self.share.split_tokens * width, across=False) if self.is_quantized else ()

    def _transpose(self, width: int) -> Operations:
        if not self.is_quantized:
            return ()
        return (streaming("elementwise", "cast", self.tokens * width * self.share.recipe.across_bytes(self.element)),)


def _with_adapter(share: Share, layer: Linear, tokens: int, base: Part) -> Part:
    """Return a frozen layer with a low-rank one parallel to it: down to the rank, up to the output, added.

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
    """Return a norm over what is split along the sequence, of the model's width or another; its input is kept."""
    model = share.job.model
    width = width or model.hidden_size
    elements = share.split_tokens * width
    if not share.software.fuses_norms:
        return _norm_in_steps(share, elements, num_parameters=width * (2 if model.normalization == "layernorm" else 1))
    written = (
        share.gemm_element if is_quantized_output and share.is_quantized and share.recipe.norm_casts else share.element
    )
    num_parameters = width * (2 if model.normalization == "layernorm" else 1)
    return Part(
        (streaming("norm", "forward", elements * (share.element + written)),),
        (streaming("norm", "backward", elements * share.element * _NORM_PASSES_BACKWARD),),
        (),
        float(elements * share.element),
        Weights(shared=float(num_parameters)),
    )


def _norm_in_steps(share: Share, elements: int, num_parameters: int) -> Part:
    """Return a norm whose steps are kernels of their own, in fp32 between; its fp32 input and result are kept.

    Forward: to fp32, square, mean, multiply, to 16 bits, times the weight; backward: the gradients of each.

    Source:
        pytorch/pytorch v2.5 aten/src/ATen/native/layer_norm.cpp, rms_norm_symint; bytes counted by hand.
    """
    narrow, wide = share.element, FP32_BYTES
    forward = (narrow + wide) + 2 * wide + wide + 2 * wide + (wide + narrow) + 2 * narrow
    of_weight, of_products, of_square = 7 * narrow, 6 * wide, 2 * wide + 3 * wide
    backward = of_weight + (narrow + wide) + of_products + of_square + (wide + narrow)
    return Part(
        (streaming("norm", "forward", elements * forward),),
        (streaming("norm", "backward", elements * backward),),
        (),
        float(elements * (wide + narrow)),
        Weights(shared=float(num_parameters)),
    )


def residual(share: Share) -> Part:
    """Return the add of a branch to the residual stream, with dropout of the branch where the software has it.

    In backward the gradients of branch and stream are added; the mask is read if there is one.
    """
    elements = share.split_tokens * share.job.model.hidden_size
    mask = MASK_BYTES * share.software.has_dropout
    backward = [streaming("elementwise", "add", 3 * elements * share.element)]
    if mask:
        backward.append(streaming("elementwise", "dropout", elements * (2 * share.element + mask)))
    return Part(
        (streaming("elementwise", "add", elements * (3 * share.element + mask)),),
        tuple(backward),
        (),
        float(elements * mask),
    )
