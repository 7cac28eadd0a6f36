"""CPU time of `triplepoint` subcommands before their first work, beside a bare interpreter and heavy imports.

Run: python tests/benchmarks/startup.py [REPEATS]
"""

import resource
import subprocess
import sys

CASES = {
    "bare interpreter": ["-c", "pass"],
    "triplepoint --help": ["-m", "triplepoint", "--help"],
    "triplepoint plan --help": ["-m", "triplepoint", "plan", "--help"],
    "triplepoint launch: imports": ["-c", "import triplepoint.cli.launch, triplepoint.launch.run, submitit"],
    "triplepoint telemetry: imports": ["-c", "import triplepoint.cli.telemetry, triplepoint.telemetry.align"],
    "triplepoint trace: imports": ["-c", "import triplepoint.cli.trace, triplepoint.trace.tables"],
    "triplepoint aggregate: imports": ["-c", "import triplepoint.cli.aggregate, triplepoint.aggregate"],
    "triplepoint figure: imports": ["-c", "import triplepoint.figures.write as w; w.load('timeline')"],
    "torch alone": ["-c", "import torch"],
}


def cpu_s(arguments: list[str]) -> float:
    """Return user and system time of one interpreter run. Unit: s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(repeats: int) -> None:
    """Print the median of each case, and its ratio to the bare interpreter."""
    samples: dict[str, list[float]] = {name: [] for name in CASES}
    for arguments in CASES.values():
        cpu_s(arguments)  # once uncounted: byte code is compiled, files are cached
    for _ in range(repeats):
        for name, arguments in CASES.items():
            samples[name].append(cpu_s(arguments))
    medians = {name: sorted(values)[repeats // 2] for name, values in samples.items()}
    for name, median in medians.items():
        print(f"{name:32} {median:6.3f} CPU s   {median / medians['bare interpreter']:6.1f} x bare")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
