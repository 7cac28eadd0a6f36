"""Measured power of kernels on an H200 by shape (`tests/data/kernel_power`), and the work rates of each kernel."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from triplepoint.calibrate.kernel_power import KernelPower, KernelTests, fit_kernel_power
from triplepoint.simulate.power.gpu import Float, Int64

FOLDER = Path(__file__).parent / "data" / "kernel_power"

_WARM_RUNS = 6
"""Number of runs before the measurement of a test."""
_COPIES = 6
"""Number of copies of the weights that a bf16 test uses in turn, one per GEMM."""
_CACHE_BYTES = 50e6
"""Size of the L2 cache of an H200. Operands of a whole test that fit into it are not read from memory."""
_TILE = 128
"""Number of rows and of columns in a tile of FlashAttention-3."""

LEFT_OUT = {
    "gemm": {"n": (768, 2560, 5120, 12288), "k": (768, 2560, 5120, 12288)},
    "context_attention": {"num_heads": (12, 24, 48), "isl": (1536, 6144, 12288)},
    "generation_attention": {"num_heads": (12, 24, 48), "step": (255, 4095, 32767)},
}
"""Shapes that are left out of the fit, by table: those with one of these values."""
CHARGED = {
    "gemm": ("FLOP of bf16", "FLOP of fp8", "byte of memory", "byte"),
    "context_attention": ("FLOP of bf16", "FLOP of fp8", "byte"),
    "generation_attention": ("FLOP of bf16", "FLOP of fp8", "byte"),
}
"""Kinds of work with a fitted energy, by table."""
_START = {
    "gemm": KernelPower(150.0, (1.0, 0.7, 70.0, 30.0)),
    "context_attention": KernelPower(200.0, (1.0, 0.7, 100.0)),
    "generation_attention": KernelPower(200.0, (1.0, 0.7, 100.0)),
}


@dataclass(frozen=True, eq=False)
class JudgedKernels:
    """A table, and the power model fitted to it.

    Attributes:
        rows: Rows of the table with added columns: `error` (modelled over measured reading, minus 1), `power_w` of the
            model in W, `is_left_out`, and `class` of the kernel.
        power: Fitted power model.
    """

    rows: pd.DataFrame
    power: KernelPower

    def left_out(self, low_ms: float = 0.1, high_ms: float = 5.0) -> pd.DataFrame:
        """Return the rows left out of the fit whose kernels take between `low_ms` and `high_ms`. Unit: ms."""
        return self.rows[self.rows.is_left_out & self.rows.latency.between(low_ms, high_ms)]


def judge_kernels(table: str, folder: Path = FOLDER) -> JudgedKernels:
    """Fit power to the shapes of a table that are not left out.

    Args:
        table: gemm, context_attention or generation_attention.
        folder: Folder of the tables.
    """
    rows = read_kernels(table, folder)
    left_out = [rows[column].isin(values) for column, values in LEFT_OUT[table].items()]
    rows["is_left_out"] = np.logical_or.reduce(left_out)
    tests = _tests(table, rows)
    power, rows["error"] = fit_kernel_power(tests, _START[table])
    rows["power_w"] = power.power_w(tests.rates)
    rows["class"] = rows["gemm_dtype" if table == "gemm" else "kv_cache_dtype"].astype(str)
    return JudgedKernels(rows, power)


def unpaused_spread(rows: pd.DataFrame) -> float:
    """Return the mean relative deviation from the median of readings that differ only in the pauses between tests.

    These are tests of 1 s at the power limit that follow another such test on the same GPU.
    """
    is_at_limit = (rows.power_w > 699.0) & rows.latency.between(0.34, 5.0) & (rows["class"] != "fp8_block")
    follows_another = is_at_limit & is_at_limit.shift(fill_value=False) & (rows.gpu == rows.gpu.shift())
    readings = rows.power[follows_another]
    return float((readings / readings.median() - 1.0).abs().mean())


def read_kernels(table: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Return a table sorted by GPU (`gpu`) and by the order in which the GPU ran the tests (`order`)."""
    rows = pd.read_parquet(folder / f"h200_{table}.parquet").reset_index(drop=True)
    if "gpu" not in rows:
        rows["gpu"], rows["order"] = _find_gpus(table, rows)
    return rows[rows.gpu >= 0].sort_values(["gpu", "order"], kind="stable").reset_index(drop=True)


def _find_gpus(table: str, rows: pd.DataFrame) -> tuple[Int64, Int64]:
    """Return GPU and order of each row of a complete table, whose rows are in the order in which tests ended.

    Eight workers take tests from one queue. The GPU that ended row `k - 8` runs test `k` of the queue. Source: README
    of the data.
    """
    if table == "gemm":
        # One GPU ran these rows. The last rows, left out (-1), came from several GPUs.
        return np.where(rows.m > 2, 0, -1), np.arange(len(rows))
    heads = ["head_dim", "num_heads", "num_key_value_heads", "window_size"]
    group = rows.groupby(heads, sort=False).ngroup()
    is_fp8 = rows.kv_cache_dtype == "fp8"
    if table == "context_attention":
        queue = np.lexsort([is_fp8, -rows.batch_size, -rows.isl, group])
    else:
        batch = rows.index.to_series().groupby([group, rows.batch_size]).transform("median")
        queue = np.lexsort([is_fp8, rows.step, batch])
    order = np.empty(len(rows), dtype=np.int64)
    order[queue] = np.arange(len(rows))
    gpu = np.arange(len(rows))
    for row in queue:
        gpu[row] = order[row] if order[row] < 8 else gpu[order[row] - 8]
    return gpu, order


def _tests(table: str, rows: pd.DataFrame) -> KernelTests:
    """Return the tests of a table, as the fit takes them."""
    time_s = rows.latency.to_numpy() / 1e3
    run_s = time_s * np.where(rows.gemm_dtype == "bfloat16", _COPIES, 1) if table == "gemm" else time_s
    target_s = np.where(run_s < 1e-4, 0.3, 1.0)
    num_runs = np.minimum(np.maximum(6, np.floor(target_s / run_s) + 1), 3000)
    work = {"gemm": _gemm, "context_attention": _context, "generation_attention": _generation}[table](rows)
    group = rows.groupby(["m", "n", "gemm_dtype"], sort=False).ngroup() if table == "gemm" else 0 * rows.gpu
    return KernelTests(
        rows.gpu.to_numpy(), group.to_numpy(), _WARM_RUNS * run_s, num_runs * run_s, work / time_s[:, None] / 1e12,
        rows.power.to_numpy(), ~rows.is_left_out.to_numpy(),
    )  # fmt: skip


def _by_precision(is_fp8: Float, amount: Float) -> list[Float]:
    """Return the amount as columns for bf16 and fp8."""
    return [np.where(is_fp8, 0.0, amount), np.where(is_fp8, amount, 0.0)]


def _gemm(rows: pd.DataFrame) -> Float:
    """Return the work of GEMMs: FLOP in bf16 and fp8, bytes from memory, bytes of all operands."""
    is_fp8 = (rows.gemm_dtype == "fp8_block").to_numpy()
    m, n, k = (rows[name].to_numpy(dtype=float) for name in "mnk")
    weight_bytes, other_bytes = np.where(is_fp8, 1, 2) * n * k, 2 * (m * k + m * n)
    exceeds_cache = np.where(is_fp8, 1, _COPIES) * weight_bytes + other_bytes > _CACHE_BYTES
    operand_bytes = weight_bytes + other_bytes
    memory_bytes = np.where(exceeds_cache, operand_bytes, 0.0)
    return np.stack([*_by_precision(is_fp8, 2 * m * n * k), memory_bytes, operand_bytes], axis=1)


def _context(rows: pd.DataFrame) -> Float:
    """Return the work of attention over prompts: FLOP in bf16 and fp8, bytes of operands."""
    is_fp8, batch, heads, kv_heads, head_dim, window = _attention(rows)
    tokens = rows.isl.to_numpy(dtype=float)
    tiles = np.ceil(tokens / _TILE)
    window_tiles = np.where(window > 0, np.ceil(window / _TILE) + 1, np.inf)
    growing = np.minimum(tiles, window_tiles)  # rows of tiles that have not reached the window yet
    blocks = growing * (growing + 1) / 2 + (tiles - growing) * np.where(np.isfinite(window_tiles), window_tiles, 0.0)
    # Short sequences share a tile with the other query heads of the same KV head.
    packed = np.ceil(tokens * heads / kv_heads / _TILE) * _TILE * kv_heads / heads * _TILE
    scores = batch * heads * np.where(tokens < _TILE, packed, blocks * _TILE**2)
    width = np.where(is_fp8, 1, 2)
    operand_bytes = batch * tokens * head_dim * (heads * (width + 2) + kv_heads * (4 + 4 * width))
    return np.stack([*_by_precision(is_fp8, 4 * head_dim * scores), operand_bytes], axis=1)


def _generation(rows: pd.DataFrame) -> Float:
    """Return the work of attention of a generated token: FLOP in bf16 and fp8, bytes of operands."""
    is_fp8, batch, heads, kv_heads, head_dim, window = _attention(rows)
    tokens = rows.step.to_numpy(dtype=float) + 1
    attended = np.where(window > 0, np.minimum(window, tokens), tokens)
    width = np.where(is_fp8, 1, 2)
    cache_bytes = batch * attended * kv_heads * head_dim * 2 * width
    operand_bytes = cache_bytes + batch * heads * head_dim * (width + 2)
    flops = 4 * batch * attended * head_dim * kv_heads * np.ceil(heads / kv_heads / 64) * 64
    return np.stack([*_by_precision(is_fp8, flops), operand_bytes], axis=1)


def _attention(rows: pd.DataFrame) -> tuple[Float, ...]:
    """Return whether the cache is fp8, batch, heads, KV heads, head size and window of each row."""
    names = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size")
    return (rows.kv_cache_dtype == "fp8").to_numpy(), *(rows[name].to_numpy(dtype=float) for name in names)
