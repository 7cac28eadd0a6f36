"""Where the ranks of a gang on one machine meet."""

import socket

import psutil
import pytest
import torch.distributed as dist

from triplepoint.launch.engines.loop import join_group


def test_join_group_on_one_machine_listens_at_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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
