"""Where the ranks of a gang on one machine meet."""

import psutil
import pytest
import torch.distributed as dist

from triplepoint.launch.engines.loop import join_group
from triplepoint.processes import free_port


def test_join_group_on_one_machine_listens_at_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in (place | {"TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)
    join_group("cpu")
    try:
        found = [one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
        assert port in [one.port for one in found] and {one.ip for one in found} == {"127.0.0.1"}
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
