"""Recordings of the published study (sitar-lab/CharLLM-PPT): 14 CSV files per GPU, `<metric>_<rank>.csv`.

A file has lines `time,value` without a header; -1 is a failed read.

Source: zeus/zeus/monitor/power.py at dad5f27.
"""

import re

import numpy as np

from triplepoint.importers.cells import read_numbers
from triplepoint.importers.declaration import USUAL_GPUS_PER_NODE, Content, FileTelemetry, Format, ReadOptions, Source
from triplepoint.importers.rows import HOST
from triplepoint.importers.text import split_csv
from triplepoint.importers.times import read_times

_WRAP = (2.0**32,)
"""Value at which byte counters wrap, since they are read as 32 bits."""
_COLUMNS = {
    "gpu_power": Source("gpu_power_w", "W"),
    "mem_power": Source("gpu_memory_power_w", "W"),
    "gpu_thermal": Source("gpu_temp_c", "C"),
    "mem_thermal": Source("gpu_memory_temp_c", "C"),
    "sm_clock": Source("sm_clock_mhz", "MHz"),
    "mem_clock": Source("memory_clock_mhz", "MHz"),
    "gpu_util": Source("gpu_utilisation", "%"),
    "mem_util": Source("gpu_memory_utilisation", "%"),
    "pcie_tx_bytes": Source("pcie_tx_bytes", "byte", wraps_at=_WRAP),
    "pcie_rx_bytes": Source("pcie_rx_bytes", "byte", wraps_at=_WRAP),
    "system_cpu_temp": Source("cpu_temp_c", "C"),
}
_AMD = {"gpu_thermal": Source("gpu_edge_temp_c", "C"), "gpu_power": Source("gpu_power_average_w", "W")}
_LEFT_OUT = {
    **dict.fromkeys(("nvlink_tx_throughput", "nvlink_rx_throughput"), "link 0 of 18 alone: asked for without a scope"),
    **dict.fromkeys(("pcie_tx_throughput", "pcie_rx_throughput"), "a sample of 20 ms, not a count"),
    **dict.fromkeys(("system_ib_rx_bytes", "system_ib_tx_bytes"), "IP over InfiniBand, which RDMA bypasses"),
    "system_memory_used": "the size of the memory, not its use",
    "system_memory_free": "no column here for it without the size",
    **dict.fromkeys(("system_cpu_usage", "system_cpu_idle", "system_cpu_iowait"), "seconds of single cores and modes"),
}
_NAME = re.compile(
    "(?:.*[/_])?("
    + "|".join(sorted({*_COLUMNS, *_LEFT_OUT}, key=len, reverse=True))
    + r")_(?:rank_)?(\d+)(?:_id_(\w+))?\.csv$"
)
_LINE = re.compile(r"\d{10}(\.\d+)?,-?\d+(\.\d+)?$")


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    named = _NAME.match(content.path.name)
    assert named is not None
    metric, rank, part = named[1], int(named[2]), named[3] or ""
    per_node = options.gpus_per_node or USUAL_GPUS_PER_NODE
    is_amd = not (content.path.parent / f"pcie_tx_bytes_{rank}.csv").exists()
    if metric in _LEFT_OUT or (is_amd and metric == "mem_util"):
        return FileTelemetry([], left_out={metric: _LEFT_OUT.get(metric, "memory in use, not its activity, on AMD")})
    source = _AMD.get(metric, _COLUMNS[metric]) if is_amd else _COLUMNS[metric]
    grid = split_csv(content, ["time", metric], options.skip_bad)
    t_ns, clock = read_times(grid.columns[0], content.path, "time", grid.lines)
    values = read_numbers(grid.columns[1], source, "", f"{content.path}: column {metric}")
    values = np.where(values == -(source.factor() or 1.0), np.nan, values)
    device = HOST if metric.startswith("system") else f"gpu{rank % per_node}"
    series = source.series(f"node{rank // per_node}", device, t_ns, values, part)
    notes = [*grid.notes]
    if options.gpus_per_node is None and rank >= USUAL_GPUS_PER_NODE:
        notes.append(f"taken as {USUAL_GPUS_PER_NODE} GPUs a node; say --gpus-per-node if it is another number")
    return FileTelemetry([series], clock, notes=notes, is_amd=is_amd)


FORMAT = Format(
    name="CharLLM-PPT",
    recorded_by="the scripts of sitar-lab/CharLLM-PPT, ZEUS_CSV_PATH",
    columns=_COLUMNS,
    left_out=_LEFT_OUT,
    times=("time",),
    matches=lambda content: (
        _NAME.match(content.path.name) is not None and _LINE.match(content.first_line.strip()) is not None
    ),
    read=_read,
    shows=(
        "gpu_power is instantaneous: 25 of every 100 ms are seen. No energy counter and no reasons for throttling. "
        "PCIe counters of 32 bits: more than one wrap between two polls is lost. It was polled while the profiler ran."
    ),
)
