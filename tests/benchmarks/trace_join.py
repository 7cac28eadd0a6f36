"""Time and memory of `triplepoint trace` for the traces of many ranks, read and joined by one command.

Run from the repository: python -m tests.benchmarks.trace_join

All ranks have the same synthetic trace, except for the rank, its tensor parallel group of eight and the base time of
its clock, which is a microsecond later with each rank. The time is that of all processes together; `wall` is what a
person waits, and means something on idle cores only. Memory is that of the largest process.
"""

import argparse
import re
import sys
import sysconfig
import tempfile
import time
import zlib
from pathlib import Path

from tests.benchmarks.trace_compare import measure
from tests.benchmarks.trace_generate import trace_text

_GROUP = 8
_BASE_NS = 1_711_964_646_000_000_000
_OF_RANK = re.compile(rb'"rank": 0,|\[0, 1, 2, 3, 4, 5, 6, 7\]|"world_size": 64|%d' % _BASE_NS)


def write_rank(text: bytes, rank: int, num_ranks: int, path: Path) -> None:
    """Write the trace of one rank.

    Args:
        text: Trace of rank 0.
        rank: The rank.
        num_ranks: World size.
        path: File to write, in gzip.
    """
    first = rank // _GROUP * _GROUP
    of_rank = {
        b'"rank": 0,': b'"rank": %d,' % rank,
        b"[0, 1, 2, 3, 4, 5, 6, 7]": str(list(range(first, first + _GROUP))).encode(),
        b'"world_size": 64': b'"world_size": %d' % num_ranks,
        b"%d" % _BASE_NS: b"%d" % (_BASE_NS + 1_000 * rank),
    }
    packer = zlib.compressobj(1, wbits=31)
    own = _OF_RANK.sub(lambda found: of_rank[found[0]], text)
    path.write_bytes(packer.compress(own) + packer.flush())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32], help="numbers of ranks, multiples of eight")
    parser.add_argument("--raw-gb", type=float, default=0.1, help="size of each trace's text in 1e9 bytes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = b"".join(trace_text(arguments.raw_gb))
        num_ranks = max(arguments.ranks)
        for rank in range(num_ranks):
            write_rank(text, rank, num_ranks, folder / f"rank{rank}.json.gz")
        print(f"{len(text) / 1e6:.0f} MB of text a rank, {len(_OF_RANK.findall(text))} places of its own")
        program = str(Path(sysconfig.get_path("scripts"), "triplepoint"))
        for count in arguments.ranks:
            files = [str(folder / f"rank{rank}.json.gz") for rank in range(count)]
            begin_s = time.monotonic()
            cost = measure(
                [sys.executable, program, "trace", *files, "--out", str(folder / f"out{count}")], folder / "log"
            )
            wall_s = time.monotonic() - begin_s
            print(f"{count:3d} ranks: {wall_s:6.1f} s wall, {cost.cpu_s:6.1f} CPU s, {cost.peak_mb:6.0f} MB")


if __name__ == "__main__":
    main()
