"""A sysfs tree with moving counters. Files are overwritten in place, because readers keep them open."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from tests.fakes.host import HostParts, Port

REFRESH_S = 0.01
WORD_BYTES = 4
CONGESTION = {"counters": ("port_xmit_wait",), "hw_counters": ("out_of_sequence", "np_cnp_sent", "rnr_nak_retry_err")}


class Sysfs:
    """Writes the tree of a host once and, after `start`, repeatedly in a thread."""

    def __init__(self, root: Path, host: HostParts, time_s: Callable[[], float]) -> None:
        self.root = root
        self.host = host
        self._time_s = time_s
        self._files: dict[Path, int] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        root.mkdir(exist_ok=True)
        self._write_constants()
        self.write()

    def start(self) -> None:
        """Start a thread that updates the counters."""
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, if it runs, and close the files."""
        self._stopping.set()
        if self._thread:
            self._thread.join()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def write(self) -> None:
        """Write the present value of every counter."""
        t_s = self._time_s()
        for port in self.host.ports:
            self._write_port(port, t_s)
        for domain in self.host.rapl:
            energy_uj = domain.offset_uj + int(domain.power_w.integral(t_s) * 1e6)
            self._put(f"class/powercap/{domain.folder}/energy_uj", energy_uj % domain.max_energy_range_uj)
        if self.host.plug_w is not None:
            self._put("class/hwmon/hwmon90/power1_average", round(self.host.plug_w.value(t_s) * 1e6))
        for index, sensor in enumerate(self.host.hwmon):
            self._put(f"class/hwmon/hwmon{index}/temp1_input", round(sensor.temp_c.value(t_s) * 1000))

    def _write_port(self, port: Port, t_s: float) -> None:
        base = f"class/infiniband/{port.device}/ports/{port.port}"
        seconds = port.load.integral(min(t_s, port.freeze_s))
        for name, rate in (("port_xmit_data", port.xmit_bytes_per_s), ("port_rcv_data", port.rcv_bytes_per_s)):
            words = int((port.offset_bytes + rate * seconds) / WORD_BYTES)
            self._put(f"{base}/counters/{name}", words % 2**port.counter_bits, port.missing)
        for folder, names in CONGESTION.items():
            for name in names:
                self._put(f"{base}/{folder}/{name}", int(port.congestion_per_s * seconds), port.missing)

    def _write_constants(self) -> None:
        for port in self.host.ports:
            base = f"class/infiniband/{port.device}/ports/{port.port}"
            texts = {"link_layer": port.link_layer, "rate": port.rate, "state": "4: ACTIVE", "phys_state": "5: LinkUp"}
            for name, text in texts.items():
                self._put(f"{base}/{name}", text, port.missing)
        for domain in self.host.rapl:
            self._put(f"class/powercap/{domain.folder}/name", domain.name)
            self._put(f"class/powercap/{domain.folder}/max_energy_range_uj", domain.max_energy_range_uj)
        if self.host.plug_w is not None:
            self._put("class/hwmon/hwmon90/name", "power_meter")
        for index, sensor in enumerate(self.host.hwmon):
            self._put(f"class/hwmon/hwmon{index}/name", sensor.chip)
            self._put(f"class/hwmon/hwmon{index}/temp1_label", sensor.label)
        for slot, address in self.host.slots.items():
            self._put(f"bus/pci/slots/{slot}/address", address)

    def _put(self, path: str, value: int | str, missing: tuple[str, ...] = ()) -> None:
        """Overwrite a file in place with one write, and truncate it only if the value has become shorter."""
        target = self.root / path
        if target.name in missing:
            return
        if target not in self._files:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._files[target] = os.open(target, os.O_RDWR | os.O_CREAT, 0o444)
        file, data = self._files[target], f"{value}\n".encode()
        os.pwrite(file, data, 0)
        if os.fstat(file).st_size > len(data):
            os.ftruncate(file, len(data))

    def _loop(self) -> None:
        while not self._stopping.wait(REFRESH_S):
            self.write()
