"""How far predictions of power are from published measurements: `python -m tests.benchmarks.power_accuracy`."""

from collections.abc import Sequence
from statistics import median

from tests.node_power import judge_nodes


def show(name: str, errors: Sequence[float]) -> None:
    """Print bias, median and largest error of some rows."""
    sizes = [abs(error) for error in errors]
    bias = sum(errors) / len(errors)
    print(f"{name:<44}{len(errors):3} rows  bias {bias:+6.1%}  median {median(sizes):5.1%}  largest {max(sizes):5.1%}")


def main() -> None:
    """Print everything."""
    judged = judge_nodes()
    for one in judged:
        print(
            f"{one.id:<12}{one.meter}  measured {one.measured_w:5.0f} W  predicted {one.at_predicted_w:5.0f} W "
            f"{one.error:+6.1%} (step {one.step_error:+6.1%})  at the measured step {one.at_measured_w:5.0f} W "
            f"{one.error_at_measured:+6.1%} (GPU {one.gpu_w:3.0f} W)"
        )
    show("node power, predicted step", [one.error for one in judged])
    show("node power, measured step", [one.error_at_measured for one in judged])


if __name__ == "__main__":
    main()
