"""Errors of predicted power against published measurements: `python -m tests.benchmarks.power_accuracy`."""

from collections.abc import Sequence
from statistics import median

from tests.node_power import Judged, judge_nodes, product_tflops

SUSTAINED = (
    ("h200", "bf16", 1.0, 788),
    ("h200", "bf16", 0.0, 894),
    ("h100", "fp8", 1.0, 1403),
    ("h200", "fp8", 1.0, 1453),
)
"""GPU, precision, randomness of operands and TFLOP/s at 700 W; these values were used to set parameters."""
LIMITS_W = (600, 500, 400, 300)


def show(name: str, errors: Sequence[float]) -> None:
    """Print bias, median and largest error of some rows."""
    sizes = [abs(error) for error in errors]
    bias = sum(errors) / len(errors)
    print(f"{name:<44}{len(errors):3} rows  bias {bias:+6.1%}  median {median(sizes):5.1%}  largest {max(sizes):5.1%}")


def main() -> None:
    """Print errors of all measurements."""
    judged = judge_nodes()
    show_nodes(judged)
    show("node power, predicted step", [one.error for one in judged])
    show("node power, measured step", [one.error_at_measured for one in judged])
    show_limits()


def show_nodes(judged: Sequence[Judged]) -> None:
    """Print a line for each node."""
    for one in judged:
        print(
            f"{one.id:<12}{one.meter}  measured {one.measured_w:5.0f} W  predicted {one.at_predicted_w:5.0f} W "
            f"{one.error:+6.1%} (step {one.step_error:+6.1%})  at the measured step {one.at_measured_w:5.0f} W "
            f"{one.error_at_measured:+6.1%} (GPU {one.gpu_w:3.0f} W)"
        )


def show_limits() -> None:
    """Print the throughput of GEMMs under power limits: measured at 700 W, predicted at lower ones."""
    for gpu, what, randomness, measured in SUSTAINED:
        highest = product_tflops(gpu, 700.0, what, randomness)
        shares = (f"{limit} W {product_tflops(gpu, limit, what, randomness) / highest:.2f}" for limit in LIMITS_W)
        operands = "random" if randomness else "zeros"
        print(
            f"{gpu} {what} {operands:<7}700 W measured {measured:4} TFLOP/s  predicted {highest:4.0f} "
            f"{highest / measured - 1:+6.1%}; of that, not measured: {', '.join(shares)}"
        )


if __name__ == "__main__":
    main()
