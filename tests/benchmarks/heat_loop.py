"""CPU time of the loop of power, heat and clocks: `python -m tests.benchmarks.heat_loop`."""

import time

import numpy as np

from tests.unit.simulate.heat.machines import machine, product
from triplepoint.simulate.heat.devices import BadContact, equal_devices, with_faults
from triplepoint.simulate.heat.loop import run, settle, start
from triplepoint.simulate.heat.machine import Machine

HOUR_S = 3600.0
NODES, PARTS = 8, 12


def seconds(nodes: Machine) -> tuple[float, float]:
    """Return the CPU time of an hour at 20 Hz, closed and open in turn, because the speed of machines varies."""
    taken, states = {True: 0.0, False: 0.0}, {True: start(nodes), False: start(nodes)}
    for _ in range(PARTS):
        for is_closed, state in states.items():
            begin = time.process_time()
            run(nodes, product(nodes), HOUR_S / PARTS, state, is_closed)
            taken[is_closed] += time.process_time() - begin
    return taken[True], taken[False]


def main() -> None:
    sound = machine(num_nodes=NODES)
    hot = machine(devices=with_faults(equal_devices(NODES, 8), [BadContact(0, 6, 7.0)]))
    warm = machine(num_nodes=NODES, inlet_c=np.full(NODES, 50.0))
    for name, nodes in (("sound", sound), ("one GPU held by heat", hot), ("a room of 50 degC", warm)):
        closed, is_open = seconds(nodes)
        times = f"closed {closed:.1f} CPU s, open {is_open:.1f}, ratio {closed / is_open:.2f}"
        print(f"64 GPUs, 1 h at 20 Hz, {name}: {times}")
    begin = time.process_time()
    found = settle(machine(devices=equal_devices(NODES, 8), inlet_c=np.full(NODES, 24.0)), product(sound))
    print(f"to steady state, {found.elapsed_s:.0f} s of it: {time.process_time() - begin:.2f} CPU s")


if __name__ == "__main__":
    main()
