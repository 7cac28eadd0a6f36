"""nvidia-smi --query-gpu as CSV: with and without header and units, looped (-l), cut off at its end.

Source: nvidia-smi --help-query-gpu (driver 580); nvml.h, nvmlDeviceGetPowerUsage: the draw is a mean over one second on
Ampere (but for GA100) and newer, instantaneous on GA100 and older.
"""

import re

from triplepoint.errors import UserError
from triplepoint.importers.declaration import Asked, Content, Format, Found, Source
from triplepoint.importers.rows import read_rows
from triplepoint.importers.text import split_csv, split_name

_DRAW = Source("gpu_power_average_w", "W", is_draw=True)
_REASONS = Source("gpu_throttle_reasons", "1")
_SM_CLOCK, _MEMORY_CLOCK = Source("sm_clock_mhz", "MHz"), Source("memory_clock_mhz", "MHz")
_TIME_COUNTERS = {
    "sw_power_cap": "gpu_power_cap_s",
    "sync_boost": "gpu_sync_boost_s",
    "sw_thermal_slowdown": "gpu_sw_thermal_s",
    "hw_thermal_slowdown": "gpu_hw_thermal_s",
    "hw_power_braking": "gpu_power_brake_s",
}
_COLUMNS = {
    "power.draw.instant": Source("gpu_power_w", "W"),
    "power.draw.average": Source("gpu_power_average_w", "W"),
    "power.draw": _DRAW,
    "module.power.draw.instant": Source("gpu_module_power_w", "W"),
    "enforced.power.limit": Source("gpu_power_limit_w", "W"),
    "power.limit": Source("gpu_power_limit_w", "W"),
    "temperature.gpu": Source("gpu_temp_c", "C"),
    "temperature.gpu.tlimit": Source("gpu_temp_margin_c", "C"),
    "temperature.memory": Source("gpu_memory_temp_c", "C"),
    "utilization.gpu": Source("gpu_utilisation", "%"),
    "utilization.memory": Source("gpu_memory_utilisation", "%"),
    "memory.used": Source("gpu_memory_used_bytes", "MiB"),
    "clocks.sm": _SM_CLOCK,
    "clocks.current.sm": _SM_CLOCK,
    "clocks.gr": _SM_CLOCK,
    "clocks.current.graphics": _SM_CLOCK,
    "clocks.mem": _MEMORY_CLOCK,
    "clocks.current.memory": _MEMORY_CLOCK,
    "clocks_event_reasons.active": _REASONS,
    "clocks_throttle_reasons.active": _REASONS,
    **{f"clocks_event_reasons_counters.{name}": Source(metric, "us") for name, metric in _TIME_COUNTERS.items()},
    "ecc.errors.corrected.volatile.total": Source("gpu_ecc_corrected", "1"),
    "ecc.errors.uncorrected.volatile.total": Source("gpu_ecc_uncorrected", "1"),
}
_CONSTANT = "does not change while a job runs"
_LEFT_OUT = {
    "memory.total": _CONSTANT,
    "memory.free": "follows from memory.used",
    "power.max_limit": _CONSTANT,
    "power.min_limit": _CONSTANT,
    "power.default_limit": _CONSTANT,
    "clocks.max.sm": _CONSTANT,
    "clocks.max.memory": _CONSTANT,
    "driver_version": _CONSTANT,
    "pstate": "a class of clocks; the clocks themselves are taken",
    "fan.speed": "no column here for it",
    "temperature.gpu_tlimit": "no column here for it",
}
_MESSAGES = (
    r"Unable to determine the device handle|Failed to initialize NVML|NVIDIA-SMI has failed|No devices were found|"
    r"GPU is lost|^Unknown Error"
)
_STAMP = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, *\S")
_DEVICES = ("gpu", "index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_KNOWN = {*_COLUMNS, *_LEFT_OUT}


def _matches(content: Content) -> bool:
    """Return whether the header has columns of --query-gpu, or lines begin with its time and have its units."""
    names = {split_name(cell)[0] for cell in content.first_line.split(",")}
    has_units = "[" in content.first_line
    if names & _KNOWN:
        return has_units or bool(names & {"timestamp", *_DEVICES, "name"})
    return ("timestamp" in names and has_units) or _STAMP.match(content.first_line) is not None


def _read(content: Content, asked: Asked) -> Found:
    header = None
    if _STAMP.match(content.first_line):
        if not asked.query:
            num = len(content.first_line.split(","))
            raise UserError(
                f"{content.path}: nvidia-smi CSV without a header, {num} cells a line; name its columns with "
                "--query-gpu timestamp,index,power.draw,... as they were recorded"
            )
        header = list(asked.query)
    grid = split_csv(content, header, asked.skip_bad, _MESSAGES)
    return read_rows(grid, FORMAT, str(content.path))


FORMAT = Format(
    name="nvidia-smi CSV",
    recorded_by="nvidia-smi --query-gpu=timestamp,index,power.draw,... --format=csv -l 1",
    columns=_COLUMNS,
    left_out=_LEFT_OUT,
    times=("timestamp",),
    devices=_DEVICES,
    hosts=("hostname", "host", "node"),
    facts={"name": "product", "gpu_name": "product", "uuid": "uuid", "gpu_uuid": "uuid"},
    matches=_matches,
    read=_read,
    shows="No energy counter, so peaks and short steps cannot be told.",
    shows_of_columns={
        "gpu_power_average_w": (
            "power.draw is a mean of about 1 s on H100, H200 and other GPUs after GA100, and instantaneous on A100 and "
            "V100."
        ),
        "gpu_power_w": "An instantaneous reading sees 25 of every 100 ms on A100 and H100.",
    },
)
