"""Time of one kernel from its shape: tiles over compute units, overlapped with memory traffic."""

from dataclasses import dataclass

from triplepoint.simulate.kernels.parameters import AttentionPass, GemmParameters

_TILES = tuple(
    (rows, columns, rows * columns / (rows + columns))
    for rows, columns in ((128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64))
)
"""Output tiles that libraries choose from (rows, columns), and the extent that decides how often an operand is read
again."""

_LARGEST_EXTENT = max(extent for _, _, extent in _TILES)
_K_STEP = 64
_SPLITS = (2, 4, 8, 16)
_ATTENTION_BLOCK = 128
_GEMMS = {"forward": 2, "backward": 5}
"""GEMMs of attention: scores and output; the backward pass has the scores again and four gradients."""


@dataclass(frozen=True)
class Machine:
    """Rates of one device.

    Attributes:
        peak_flops: Peak at the precision of the kernel and the clock it runs at. Unit: FLOP/s.
        bandwidth: Peak bandwidth of device memory. Unit: byte/s.
        num_sms: Compute units.
        ramp_us: Time that large tensors lose before memory reaches its full rate. Unit: us.
        ramp_bytes: Size at which half of `ramp_us` is lost. Unit: byte.
    """

    peak_flops: float
    bandwidth: float
    num_sms: int
    ramp_us: float = 0.0
    ramp_bytes: float = 1.0

    def memory_s(self, num_bytes: float, efficiency: float) -> float:
        """Return the time to move `num_bytes` at a fraction `efficiency` of peak bandwidth. Unit: s."""
        ramp_us = self.ramp_us * num_bytes / (num_bytes + self.ramp_bytes)
        return num_bytes / (self.bandwidth * efficiency) + ramp_us * 1e-6


@dataclass(frozen=True)
class Gemm:
    """GEMMs of one kernel.

    Attributes:
        groups: Number of GEMMs.
        m: Rows of each output.
        n: Columns of each output.
        k: Inner dimension.
        num_bytes: Bytes read and written. Unit: byte.
        output_bytes: Bytes of `num_bytes` that belong to outputs. Unit: byte.
    """

    groups: int
    m: int
    n: int
    k: int
    num_bytes: float
    output_bytes: float


def gemm_s(gemm: Gemm, fit: GemmParameters, machine: Machine) -> float:
    """Return the time of a GEMM kernel. Unit: s.

    The library is assumed to choose the fastest tile and split of K. Tiles are distributed over the compute units in
    waves. Memory works at the same time; the closer the two times, the less they hide each other.
    """
    compute = min(_tiled_s(gemm, fit, machine, *tile) for tile in _TILES)
    memory = machine.memory_s(gemm.num_bytes, fit.memory_efficiency)
    exponent = fit.overlap_exponent
    longer, shorter = (compute, memory) if compute > memory else (memory, compute)
    overlapped = float(longer * (1 + (shorter / longer) ** exponent) ** (1 / exponent))
    return overlapped + fit.output_cost * gemm.output_bytes / machine.bandwidth + fit.fixed_us * 1e-6


def _tiled_s(gemm: Gemm, fit: GemmParameters, machine: Machine, rows: int, columns: int, extent: float) -> float:
    """Return the compute time of a GEMM with one tile size, with the best split of K. Unit: s."""
    tiles = -(-gemm.m // rows) * -(-gemm.n // columns) * gemm.groups
    slowdown = (1 + fit.tile_penalty / extent) / (1 + fit.tile_penalty / _LARGEST_EXTENT)
    step_s = 2 * rows * columns * _K_STEP * slowdown * machine.num_sms / (machine.peak_flops * fit.efficiency)
    overhead_s = fit.tile_overhead_us * 1e-6
    steps = -(-gemm.k // _K_STEP)
    best_s = _num_waves(tiles / machine.num_sms, fit.wave_quantisation) * (steps * step_s + overhead_s)
    # Splitting K pays only if compute units would be idle. The condition also keeps larger GEMMs from being faster.
    if tiles < machine.num_sms:
        partial_s = gemm.m * gemm.n * gemm.groups * 8 / (machine.bandwidth * fit.split_k_efficiency)
        for parts in _SPLITS:
            waves = _num_waves(tiles * parts / machine.num_sms, fit.wave_quantisation)
            split_s = waves * (-(-steps // parts) * step_s + overhead_s) + parts * partial_s
            best_s = min(best_s, split_s)
    return best_s


def _num_waves(exact: float, quantisation: float) -> float:
    """Return the effective number of waves, between the exact and the rounded-up number."""
    rounded_up = -(-exact // 1)
    return max(1.0, exact + quantisation * (rounded_up - exact))


def attention_s(shape: tuple[int, ...], is_causal: bool, kind: str, fit: AttentionPass, machine: Machine) -> float:
    """Return the time of the GEMMs and the softmax of one direction of fused attention. Unit: s.

    Blocks of 128 queries iterate over the keys. Each pair of a query and a key costs its GEMMs and a softmax that does
    not depend on the head size. Causal blocks iterate over half of the keys on average, and compute the block on the
    diagonal whole. The longest block of queries may end alone.

    Args:
        shape: Batch, heads, key heads, query length, key length, head size.
        is_causal: Whether the masked half is skipped.
        kind: forward or backward.
        fit: Parameters of this direction.
        machine: Rates of the device.
    """
    batch, heads, _, queries, keys, head_size = shape
    longest_blocks = max(1.0, keys / _ATTENTION_BLOCK)
    mean_blocks = (longest_blocks + 1) / 2 if is_causal else longest_blocks
    pair_flops = _GEMMS[kind] * 2 * head_size
    pair_s = pair_flops * (1 + fit.softmax_extent / head_size) * machine.num_sms / (machine.peak_flops * fit.efficiency)
    work = batch * heads * -(-queries // _ATTENTION_BLOCK) * (mean_blocks + fit.tile_overhead) / machine.num_sms
    last_blocks = longest_blocks + fit.tile_overhead
    return max(last_blocks, work + fit.tail * last_blocks) * _ATTENTION_BLOCK**2 * pair_s
