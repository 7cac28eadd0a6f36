"""`two_ranks.py SCRIPT ARGUMENTS` in two ranks, without the seconds of CPU that torchrun takes to import torch."""

import os
import socket
import subprocess
import sys


def main(words: list[str]) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen([sys.executable, *words], env=os.environ | place | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
