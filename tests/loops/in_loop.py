"""A loop that records itself: `in_loop.py RESULTS STEPS`."""

import sys
import time

import triplepoint


def main(results: str, num_steps: int) -> None:
    with triplepoint.record(results, warmup=1, study="mine") as recorder:
        for _ in range(num_steps):
            time.sleep(0.02)
            recorder.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
