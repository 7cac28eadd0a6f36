"""Time of one kernel from its shape: tiles over compute units, overlapped with bytes over bandwidth."""

from dataclasses import dataclass

from triplepoint.simulate.kernels.parameters import AttentionPass, GemmParameters

_TILES = tuple(
    (rows, columns, rows * columns / (rows + columns))
    for rows, columns in ((128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64))
)
"""Output tiles the libraries choose from, and the extent that decides how often an operand is read again."""

_LARGEST_EXTENT = max(extent for _, _, extent in _TILES)
_K_STEP = 64
_SPLITS = (2, 4, 8, 16)
_ATTENTION_BLOCK = 128
_PRODUCTS = {"forward": 2, "backward": 5}
"""GEMMs of attention: scores and output; backward the scores once more, then four gradients."""


@dataclass(frozen=True)
class Machine:
    """Rates of one device.

    Attributes:
        peak_flops: At the precision of the kernel and the clock it runs at. Unit: FLOP/s.
        bandwidth: Peak of device memory. Unit: byte/s.
        num_sms: Compute units.
        ramp_us: What large tensors lose before memory runs at its full rate. Unit: us.
        ramp_bytes: Size at which half of it is lost. Unit: byte.
    """

    peak_flops: float
    bandwidth: float
    num_sms: int
    ramp_us: float = 0.0
    ramp_bytes: float = 1.0

    def memory_s(self, num_bytes: float, efficiency: float) -> float:
        """Return how long memory takes to move `num_bytes` at a fraction of its peak. Unit: s."""
        ramp_us = self.ramp_us * num_bytes / (num_bytes + self.ramp_bytes)
        return num_bytes / (self.bandwidth * efficiency) + ramp_us * 1e-6


@dataclass(frozen=True)
class Gemm:
    """`groups` GEMMs (m, n, k) of one kernel; of the bytes read and written `output_bytes` are results."""

    groups: int
    m: int
    n: int
    k: int
    num_bytes: float
    output_bytes: float


def gemm_s(gemm: Gemm, fit: GemmParameters, machine: Machine) -> float:
    """Return the time of a GEMM. Unit: s.

    The library is taken to choose the tile, and the split of K, that end first. Tiles are dealt to the compute units in
    waves; memory works at the same time, less well the closer the two are.
    """
    compute = min(_tiled_s(gemm, fit, machine, *tile) for tile in _TILES)
    memory = machine.memory_s(gemm.num_bytes, fit.memory_efficiency)
    power = fit.overlap_exponent
    longer, shorter = (compute, memory) if compute > memory else (memory, compute)
    both = float(longer * (1 + (shorter / longer) ** power) ** (1 / power))
    return both + fit.output_cost * gemm.output_bytes / machine.bandwidth + fit.fixed_us * 1e-6


def _tiled_s(gemm: Gemm, fit: GemmParameters, machine: Machine, rows: int, columns: int, extent: float) -> float:
    tiles = -(-gemm.m // rows) * -(-gemm.n // columns) * gemm.groups
    slower = (1 + fit.tile_penalty / extent) / (1 + fit.tile_penalty / _LARGEST_EXTENT)
    step_s = 2 * rows * columns * _K_STEP * slower * machine.num_sms / (machine.peak_flops * fit.efficiency)
    overhead_s = fit.tile_overhead_us * 1e-6
    steps = -(-gemm.k // _K_STEP)
    least = _waves(tiles / machine.num_sms, fit.wave_quantisation) * (steps * step_s + overhead_s)
    # Splitting only pays where compute units would stand idle; then it cannot make a larger GEMM faster either.
    if tiles < machine.num_sms:
        partial_s = gemm.m * gemm.n * gemm.groups * 8 / (machine.bandwidth * fit.split_k_efficiency)
        for parts in _SPLITS:
            waves = _waves(tiles * parts / machine.num_sms, fit.wave_quantisation)
            split = waves * (-(-steps // parts) * step_s + overhead_s) + parts * partial_s
            least = min(least, split)
    return least


def _waves(exact: float, quantisation: float) -> float:
    whole = -(-exact // 1)
    return max(1.0, exact + quantisation * (whole - exact))


def attention_s(shape: tuple[int, ...], is_causal: bool, kind: str, fit: AttentionPass, machine: Machine) -> float:
    """Return the time of one direction of fused attention, its GEMMs and softmax alone. Unit: s.

    Blocks of 128 queries walk over the keys; each pair of a query and a key costs its GEMMs and a softmax
    that does not depend on the head size. Causal blocks walk over half of the keys on average, and the block on the
    diagonal is worked out whole. The longest block of queries may end alone.

    Args:
        shape: Batch, heads, heads of keys, query length, key length, head size.
        is_causal: Whether the masked half is skipped.
        kind: forward or backward.
        fit: Parameters of this direction.
        machine: Rates of the device.
    """
    batch, heads, _, queries, keys, head_size = shape
    longest = max(1.0, keys / _ATTENTION_BLOCK)
    mean = (longest + 1) / 2 if is_causal else longest
    pair_flops = _PRODUCTS[kind] * 2 * head_size
    pair_s = pair_flops * (1 + fit.softmax_extent / head_size) * machine.num_sms / (machine.peak_flops * fit.efficiency)
    work = batch * heads * -(-queries // _ATTENTION_BLOCK) * (mean + fit.tile_overhead) / machine.num_sms
    last = longest + fit.tile_overhead
    return max(last, work + fit.tail * last) * _ATTENTION_BLOCK**2 * pair_s
