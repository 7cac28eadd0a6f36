"""Starts and stops the test cluster: `python3 -m tests.slurm up | down | status`, as root, without Python packages."""

import sys
import time

from tests.slurm.cluster import Cluster, Refused


def main(arguments: list[str]) -> int:
    """Run a command; return the exit status."""
    cluster = Cluster()
    begun = time.monotonic()
    try:
        if arguments == ["up"]:
            cluster.up()
            print(f"{len(cluster.nodes)} nodes ready after {time.monotonic() - begun:.1f} s, files in {cluster.root}")
        elif arguments == ["down"]:
            cluster.down()
            print(f"stopped after {time.monotonic() - begun:.1f} s, files removed")
        elif arguments == ["status"]:
            print("up" if cluster.is_up() else "down")
        else:
            print("usage: python3 -m tests.slurm up | down | status", file=sys.stderr)
            return 2
    except Refused as problem:
        print(f"tests.slurm: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
