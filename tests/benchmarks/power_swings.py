"""Power swings of a simulated job against a public log: `python -m tests.benchmarks.power_swings`."""

import numpy as np

from tests.power_swings import (
    BLOCK,
    FITTED_STEPS,
    STEP_S,
    MeteredJob,
    block_s,
    ends_of_steps_s,
    job_power,
    measured,
    simulated,
)

SEEDS = range(5)


def show(name: str, job: MeteredJob) -> None:
    """Print a line."""
    up, down = (ramp / 1e3 for ramp in job.ramps_w_per_s)
    print(
        f"{name:<44}{job.node_power_w:6.0f} W/node  swing {job.swing:6.1%}  line {job.line.frequency_hz:.4f} Hz "
        f"{job.line.amplitude_w / 1e3:4.1f} kW  coherence {job.coherence:.2f}  correlation {job.correlation:.2f} "
        f" nodes differ by {job.node_spread:.2%}  "
        f"ramps {up:+.0f} and {-down:+.0f} kW/s"
    )


def main() -> None:
    """Print the comparison."""
    truth, rest = measured(), measured(ends_of_steps_s()[FITTED_STEPS - 1])
    show("measured, 57 minutes", truth)
    show(f"measured, after the {FITTED_STEPS} steps fitted to", rest)
    found = [simulated(seed) for seed in SEEDS]
    show("simulated from configuration, seed 0", found[0])
    show("simulated, at the measured time of a step", simulated(0, STEP_S))
    simulated_power = job_power(0)
    step, passed, jitter = simulated_power.step, simulated_power.passed, simulated_power.point.jitter
    print(
        f"simulated step {step.length_s:.3f} s ({step.length_s / STEP_S - 1:+.1%}), forward passes of as many "
        f"sequences {passed.length_s:.3f} s at {passed.nodes_w.mean():.0f} W a node, jitter {jitter:.2%}"
    )
    print(f"measured block of {BLOCK} steps and an evaluation {block_s():.1f} s: 13th line {13 / block_s():.4f} Hz")
    goals = (
        ("node power", "5 %", f"{found[0].node_power_w / truth.node_power_w - 1:+.1%}"),
        ("swing, of the rest", "3 points", f"{100 * (found[0].swing - rest.swing):+.1f} points"),
        ("its line", "1 %", f"{found[0].line.frequency_hz / truth.line.frequency_hz - 1:+.1%}"),
        ("correlation of nodes", "shown", f"{found[0].correlation:.2f} against {truth.correlation:.2f}"),
    )
    for name, goal, error in goals:
        print(f"{name:<24}goal {goal:<10}{error}")
    spreads = {"step": [job_power(seed).step.length_s for seed in SEEDS]}
    spreads |= {"node power": [one.node_power_w for one in found], "swing": [one.swing for one in found]}
    for name, values in spreads.items():
        print(f"{name} over {len(found)} seeds: standard deviation {np.std(values, ddof=1) / np.mean(values):.2%}")


if __name__ == "__main__":
    main()
