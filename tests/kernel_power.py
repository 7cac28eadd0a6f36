"""Measured power of kernels on one H200, by shape: `tests/data/kernel_power`, and what each kernel did in a second."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from triplepoint.calibrate.kernel_power import KernelPower, KernelTests, fit_kernel_power
from triplepoint.simulate.power.gpu import Float, Int64

FOLDER = Path(__file__).parent / "data" / "kernel_power"

_WARM_RUNS = 6
_COPIES = 6
"""Weights that a bf16 test goes through in turn, each time one GEMM."""
_CACHE_BYTES = 50e6
"""L2 of an H200: operands of a whole test that fit are not read from memory."""
_TILE = 128
"""Rows and columns that FlashAttention-3 computes together."""

LEFT_OUT = {
    "gemm": {"n": (768, 2560, 5120, 12288), "k": (768, 2560, 5120, 12288)},
    "context_attention": {"num_heads": (12, 24, 48), "isl": (1536, 6144, 12288)},
    "generation_attention": {"num_heads": (12, 24, 48), "step": (255, 4095, 32767)},
}
"""By table, shapes that the fit does not see: all that have one of these values."""
CHARGED = {
    "gemm": ("FLOP of bf16", "FLOP of fp8", "byte of memory", "byte"),
    "context_attention": ("FLOP of bf16", "FLOP of fp8", "byte"),
    "generation_attention": ("FLOP of bf16", "FLOP of fp8", "byte"),
}
"""By table, what has an energy."""
_START = {
    "gemm": KernelPower(150.0, (1.0, 0.7, 70.0, 30.0)),
    "context_attention": KernelPower(200.0, (1.0, 0.7, 100.0)),
    "generation_attention": KernelPower(200.0, (1.0, 0.7, 100.0)),
}


@dataclass(frozen=True, eq=False)
class JudgedKernels:
    """A table with the power fitted to it.

    Attributes:
        rows: The table, with `error` (modelled over measured reading less 1), `power_w` of the model, `is_left_out`,
            and `class` of the kernel.
        power: The fit.
    """

    rows: pd.DataFrame
    power: KernelPower

    def left_out(self, low_ms: float = 0.1, high_ms: float = 5.0) -> pd.DataFrame:
        """Return the rows of shapes left out that take so long."""
        return self.rows[self.rows.is_left_out & self.rows.latency.between(low_ms, high_ms)]


def judge_kernels(table: str, folder: Path = FOLDER) -> JudgedKernels:
    """Return a table with power fitted to a part of its shapes."""
    rows = read_kernels(table, folder)
    left_out = [rows[column].isin(values) for column, values in LEFT_OUT[table].items()]
    rows["is_left_out"] = np.logical_or.reduce(left_out)
    tests = _tests(table, rows)
    power, rows["error"] = fit_kernel_power(tests, _START[table])
    rows["power_w"] = power.power_w(tests.rates)
    rows["class"] = rows["gemm_dtype" if table == "gemm" else "kv_cache_dtype"].astype(str)
    return JudgedKernels(rows, power)


def unpaused_spread(rows: pd.DataFrame) -> float:
    """Return the mean difference, from their median, of readings that only pauses tell apart.

    That is of tests of 1 s at the power limit that come after another one of these.
    """
    is_one = (rows.power_w > 699.0) & rows.latency.between(0.34, 5.0) & (rows["class"] != "fp8_block")
    is_after = is_one & is_one.shift(fill_value=False) & (rows.gpu == rows.gpu.shift())
    readings = rows.power[is_after]
    return float((readings / readings.median() - 1.0).abs().mean())


def read_kernels(table: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Return a table, its rows by GPU and in the order in which it ran them (`gpu`, `order`)."""
    rows = pd.read_parquet(folder / f"h200_{table}.parquet").reset_index(drop=True)
    if "gpu" not in rows:
        rows["gpu"], rows["order"] = _who_ran(table, rows)
    return rows[rows.gpu >= 0].sort_values(["gpu", "order"], kind="stable").reset_index(drop=True)


def _who_ran(table: str, rows: pd.DataFrame) -> tuple[Int64, Int64]:
    """Return GPU and order of every row of a whole table, whose rows stand as tests ended; see the README there.

    Eight workers take tests from one queue, so the test of place `k` is run by the GPU that ended the row `k - 8`.
    """
    if table == "gemm":
        # One GPU ran these; the last rows came from several.
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
    time_s = rows.latency.to_numpy() / 1e3
    once_s = time_s * np.where(rows.gemm_dtype == "bfloat16", _COPIES, 1) if table == "gemm" else time_s
    wanted_s = np.where(once_s < 1e-4, 0.3, 1.0)
    runs = np.minimum(np.maximum(6, np.floor(wanted_s / once_s) + 1), 3000)
    work = {"gemm": _gemm, "context_attention": _context, "generation_attention": _generation}[table](rows)
    group = rows.groupby(["m", "n", "gemm_dtype"], sort=False).ngroup() if table == "gemm" else 0 * rows.gpu
    return KernelTests(
        rows.gpu.to_numpy(), group.to_numpy(), _WARM_RUNS * once_s, runs * once_s, work / time_s[:, None] / 1e12,
        rows.power.to_numpy(), ~rows.is_left_out.to_numpy(),
    )  # fmt: skip


def _by_precision(is_fp8: Float, amount: Float) -> list[Float]:
    return [np.where(is_fp8, 0.0, amount), np.where(is_fp8, amount, 0.0)]


def _gemm(rows: pd.DataFrame) -> Float:
    is_fp8 = (rows.gemm_dtype == "fp8_block").to_numpy()
    m, n, k = (rows[name].to_numpy(dtype=float) for name in "mnk")
    weights, others = np.where(is_fp8, 1, 2) * n * k, 2 * (m * k + m * n)
    is_large = np.where(is_fp8, 1, _COPIES) * weights + others > _CACHE_BYTES
    moved = weights + others
    return np.stack([*_by_precision(is_fp8, 2 * m * n * k), np.where(is_large, moved, 0.0), moved], axis=1)


def _context(rows: pd.DataFrame) -> Float:
    is_fp8, batch, heads, kv_heads, head_dim, window = _attention(rows)
    tokens = rows.isl.to_numpy(dtype=float)
    tiles = np.ceil(tokens / _TILE)
    seen = np.where(window > 0, np.ceil(window / _TILE) + 1, np.inf)
    full = np.minimum(tiles, seen)
    blocks = full * (full + 1) / 2 + (tiles - full) * np.where(np.isfinite(seen), seen, 0.0)
    # Short sequences share a tile with the other query heads of a KV head.
    packed = np.ceil(tokens * heads / kv_heads / _TILE) * _TILE * kv_heads / heads * _TILE
    scores = batch * heads * np.where(tokens < _TILE, packed, blocks * _TILE**2)
    width = np.where(is_fp8, 1, 2)
    moved = batch * tokens * head_dim * (heads * (width + 2) + kv_heads * (4 + 4 * width))
    return np.stack([*_by_precision(is_fp8, 4 * head_dim * scores), moved], axis=1)


def _generation(rows: pd.DataFrame) -> Float:
    is_fp8, batch, heads, kv_heads, head_dim, window = _attention(rows)
    tokens = rows.step.to_numpy(dtype=float) + 1
    seen = np.where(window > 0, np.minimum(window, tokens), tokens)
    width = np.where(is_fp8, 1, 2)
    cache = batch * seen * kv_heads * head_dim * 2 * width
    moved = cache + batch * heads * head_dim * (width + 2)
    flops = 4 * batch * seen * head_dim * kv_heads * np.ceil(heads / kv_heads / 64) * 64
    return np.stack([*_by_precision(is_fp8, flops), moved], axis=1)


def _attention(rows: pd.DataFrame) -> tuple[Float, ...]:
    names = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size")
    return (rows.kv_cache_dtype == "fp8").to_numpy(), *(rows[name].to_numpy(dtype=float) for name in names)
