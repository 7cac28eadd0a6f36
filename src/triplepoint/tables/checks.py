"""What is known about the telemetry itself: its energy, its timing, its clocks, its sensors and its cost."""

from triplepoint.tables.schema import Column, Table, amount, count, text


def _signed(name: str, about: str) -> Column:
    return Column(name, "float", "", about, True)


TELEMETRY_CHECKS = Table(
    "telemetry_checks",
    "one row per (subject, check, what): its median and spread, or why there is none",
    (
        text("subject", "A run, or a file of `results/sensors/`."),
        text("origin", "measured or simulated."),
        text("check", "What was looked at: a key of `triplepoint.aggregate.checks.CHECKS`."),
        text("what", "Of which sensor or training loop; null for runs.", True),
        text("unit", "Unit of the values, 1 for ratios."),
        _signed("value", "Median; null where there is none."),
        _signed("low", "10th percentile; of the overhead, lower end of the 95 % interval."),
        _signed("high", "90th percentile; of the overhead, upper end of the 95 % interval."),
        _signed("p99", "99th percentile of the magnitude."),
        _signed("worst", "Largest magnitude."),
        count("num", "Values behind it: windows, samples, nodes or pairs."),
        amount("of_total", "1", "What `num` is counted out of, where that is said."),
        text("absent", "Why there is no value; null where there is.", True),
    ),
)
