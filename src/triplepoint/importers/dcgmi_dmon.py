"""dcgmi dmon: a table of text without times, or with a time before each line, as `ts` of moreutils puts it.

Source: NVIDIA/DCGM, dcgmlib/src/dcgm_fields.cpp (short names and units of fields); fields 1009 to 1012 are rates.
"""

import re

from triplepoint.importers.cells import without_blanks
from triplepoint.importers.declaration import Asked, Content, Format, Found, Source
from triplepoint.importers.rows import read_rows
from triplepoint.importers.text import gather

_HEADER = re.compile(r"^(.*?)#\s*Entity\s+(\S.*)$", re.IGNORECASE | re.MULTILINE)
_LINE = re.compile(r"^(?P<time>.*?)\s*GPU\s+(?P<gpu>\d+)\s+(?P<cells>\S.*)$")
_UNITS = re.compile(r"^(.*?)\s*ID\s+(.*)$")
_NO_BREAKDOWN = "no column here for it"
_COLUMNS = {
    "powinst": Source("gpu_power_w", "W"),
    "power": Source("gpu_power_average_w", "W", is_draw=True),
    "totec": Source("gpu_energy_j", "mJ"),
    "eplmt": Source("gpu_power_limit_w", "W"),
    "tmptr": Source("gpu_temp_c", "C"),
    "mmtmp": Source("gpu_memory_temp_c", "C"),
    "gtlimit": Source("gpu_temp_margin_c", "C"),
    "smclk": Source("sm_clock_mhz", "MHz"),
    "mmclk": Source("memory_clock_mhz", "MHz"),
    "dvcctr": Source("gpu_throttle_reasons", "1"),
    "gputl": Source("gpu_utilisation", "%"),
    "mcutl": Source("gpu_memory_utilisation", "%"),
    "fbusd": Source("gpu_memory_used_bytes", "MiB"),
    "smact": Source("gpu_sm_activity", "1"),
    "tenso": Source("gpu_tensor_activity", "1"),
    "drama": Source("gpu_dram_activity", "1"),
    "pcitx": Source("pcie_tx_bytes", "byte/s"),
    "pcirx": Source("pcie_rx_bytes", "byte/s"),
    "nvltx": Source("nvlink_tx_bytes", "byte/s"),
    "nvlrx": Source("nvlink_rx_bytes", "byte/s"),
    "pviol": Source("gpu_power_cap_s", "ns"),
    "tviol": Source("gpu_sw_thermal_s", "ns"),
    "xider": Source("gpu_xid", "1"),
}
_LEFT_OUT = dict.fromkeys(("gract", "smocc", "fp64a", "fp32a", "fp16a", "fbfre", "pcirc"), _NO_BREAKDOWN)


def _read(content: Content, asked: Asked) -> Found:
    header = _HEADER.search(content.text)
    assert header is not None
    names = ["time", "gpu", *header[2].lower().split()]
    rows = []
    for line in content.text.splitlines():
        match = _LINE.match(line)
        rows.append([match["time"].strip(), match["gpu"], *match["cells"].split()] if match else [])
    has_time = any(row and row[0] for row in rows)
    if not has_time:
        names, rows = names[1:], [row[1:] for row in rows]
    found = read_rows(gather(content, rows, names, asked.skip_bad), FORMAT, str(content.path))
    for series in found.series:
        series.values = without_blanks(series.values)
    return found


FORMAT = Format(
    name="dcgmi dmon",
    recorded_by="dcgmi dmon -e 150,155,156,157,100,1002,1004,1005,1011,1012 -d 1000 | ts '%FT%.T%z'",
    columns=_COLUMNS,
    left_out=_LEFT_OUT,
    times=("time",),
    devices=("gpu",),
    matches=lambda content: _HEADER.search(content.head) is not None,
    read=_read,
    shows=(
        "POWER (155) is a mean of about 1 s after GA100, POWINST (157) is instantaneous, TOTEC (156) counts energy. "
        "Bytes of PCIe and NVLink are made of mean rates, with headers, and lag by about 0.3 s. It prints no times by "
        "itself."
    ),
)
