"""CPU time of the loop of power, heat and clocks: `python -m tests.benchmarks.heat_loop`."""

import time

import numpy as np

from tests.unit.simulate.heat.machines import machine, product
from triplepoint.simulate.heat.loop import run, settle
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parts import BadContact, equal_devices, with_faults

HOUR_S = 3600.0
NODES = 8


def seconds(nodes: Machine, is_closed: bool) -> float:
    """CPU time of an hour at 20 Hz."""
    begin = time.process_time()
    run(nodes, product(nodes), HOUR_S, is_closed=is_closed)
    return time.process_time() - begin


def main() -> None:
    sound = machine(num_nodes=NODES)
    hot = machine(devices=with_faults(equal_devices(NODES, 8), [BadContact(0, 6, 7.0)]))
    for name, nodes in (("sound", sound), ("one GPU held by heat", hot)):
        closed, is_open = seconds(nodes, True), seconds(nodes, False)
        times = f"closed {closed:.1f} CPU s, open {is_open:.1f}, ratio {closed / is_open:.2f}"
        print(f"64 GPUs, 1 h at 20 Hz, {name}: {times}")
    begin = time.process_time()
    found = settle(machine(devices=equal_devices(NODES, 8), inlet_c=np.full(NODES, 24.0)), product(sound))
    print(f"to steady state, {found.elapsed_s:.0f} s of it: {time.process_time() - begin:.2f} CPU s")


if __name__ == "__main__":
    main()
