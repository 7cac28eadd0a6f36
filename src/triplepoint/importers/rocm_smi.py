"""rocm-smi as CSV or JSON; it prints no times: they are those a loop put before its lines, or what the user says.

Source: ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py; its issue 160: the secondary die of an MI250 has no power.
"""

import re

from triplepoint.importers.declaration import Asked, Content, Format, Found, Source
from triplepoint.importers.json_rows import gather_cards
from triplepoint.importers.rows import read_rows
from triplepoint.importers.text import from_header, split_csv

_COLUMNS = {
    "current socket graphics package power": Source("gpu_power_w", "W"),
    "average graphics package power": Source("gpu_power_average_w", "W"),
    "accumulated energy": Source("gpu_energy_j", "uJ"),
    "max graphics package power": Source("gpu_power_limit_w", "W"),
    "temperature (sensor junction)": Source("gpu_temp_c", "C"),
    "temperature (sensor edge)": Source("gpu_edge_temp_c", "C"),
    "temperature (sensor memory)": Source("gpu_memory_temp_c", "C"),
    "sclk clock speed:": Source("sm_clock_mhz", "MHz"),
    "mclk clock speed:": Source("memory_clock_mhz", "MHz"),
    "gpu use": Source("gpu_utilisation", "%"),
    "gpu memory read/write activity": Source("gpu_memory_utilisation", "%"),
    "vram total used memory": Source("gpu_memory_used_bytes", "B"),
    "pcie replay count": Source("pcie_replays", "1"),
}
_LEFT_OUT = {
    "gpu memory use": "memory in use or memory activity, by version",
    "gpu memory allocated": "follows from the memory in use",
    "vram total memory": "does not change while a job runs",
    "energy counter": "raw; accumulated energy is in uJ",
}
_IDENTITY = re.compile(
    r"version|clock level|firmware|topology|^(device|card|gpu) (name|series|model|vendor|sku|id|rev)|^\d+$|subsystem|"
    r"guid|"
    r"serial|unique|pci bus|node id|gfx version|vbios|overdrive|performance level|gtt|vis_vram|voltage|fan|fclk|"
    r"socclk|avg\.|"
    r"memory activity|memory vendor|sensor hbm"
)


def _read(content: Content, asked: Asked) -> Found:
    is_json = content.head.lstrip()[:1] == "{"
    messages = r"^(WARNING|ERROR)|monitor_devices lock|=====|^cardN"
    grid = gather_cards(content) if is_json else split_csv(
        from_header(content, _is_header), None, asked.skip_bad, messages
    )  # fmt: skip
    found = read_rows(grid, FORMAT, str(content.path))
    found.left_out = {name: why for name, why in found.left_out.items() if not _IDENTITY.search(name)}
    return found


def _is_header(line: str) -> bool:
    names = [cell.strip().lower() for cell in line.split(",")]
    return ("device" in names or "card" in names) and bool(
        re.search(r"Package Power|Sensor |GPU use|clock speed", line)
    )


def _matches(content: Content) -> bool:
    if content.head.lstrip()[:1] == "{":
        return re.search(r'"card\d+"\s*:\s*\{', content.head) is not None
    return any(_is_header(line) for line in content.head.splitlines())


FORMAT = Format(
    name="rocm-smi",
    recorded_by="rocm-smi --showpower --showtemp --showclocks --showuse --showenergycounter --csv",
    columns=_COLUMNS,
    left_out=_LEFT_OUT,
    times=("timestamp", "time", "date"),
    devices=("device", "card"),
    hosts=("hostname", "host", "node"),
    facts={"card series": "product", "device name": "product", "unique id": "uuid"},
    is_amd=True,
    matches=_matches,
    read=_read,
    shows=(
        "Average power is a mean over a time the driver does not tell; current socket power (MI300) is nearer to an "
        "instant. Only the primary die of an MI250 has power, and it is that of both."
    ),
)
