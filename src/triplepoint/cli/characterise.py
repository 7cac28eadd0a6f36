"""`triplepoint characterise OUT`: the sensor card of a GPU."""

import argparse
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import make_parser, out_file, out_folder, say, seconds
from triplepoint.text import percent


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "characterise",
        "Measure how the power sensors of a GPU sample, average and delay power; write a sensor card.",
        ["triplepoint characterise results/sensors/h200.json --record recording"],
        answer={"card": "file that was written", "sensors": "period, window and lag by sensor (docs/methodology.md)"},
    )
    parser.add_argument("out", type=out_file, metavar="CARD", help="JSON file to write")
    parser.add_argument("--device", choices=("cuda", "rocm"), default="cuda", help="kind of GPU")
    parser.add_argument(
        "--gpu", default="gpu0", help="which GPU of this node; the load runs on the first one torch sees"
    )
    parser.add_argument(
        "--seconds",
        type=seconds(1, 86400),
        metavar="S",
        help="how long the load runs (default: 60; with --record 500)",
    )
    parser.add_argument(
        "--record",
        type=out_folder,
        metavar="FOLDER",
        help="run kernels and heating too, and keep in FOLDER what --from, overhead --from and calibrate --power read "
        "(default: nothing is kept)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="use samples.parquet and windows.parquet of FOLDER (default: measure)",
    )
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Measure the sensors of a GPU under load, or read a recording; write the sensor card."""
    from triplepoint.files import write_json
    from triplepoint.telemetry.characterise import from_folder, from_gpu

    if arguments.record:
        from triplepoint.telemetry.record_gpu import record_gpu

        record_gpu(arguments.record, arguments.device, arguments.seconds or 500.0, say)
    if arguments.record or arguments.source:
        card = from_folder(arguments.record or arguments.source, arguments.gpu)
    else:
        card = from_gpu(arguments.device, arguments.gpu, arguments.seconds or 60.0)
    write_json(arguments.out, card)
    lines = []
    for name, sensor in card["sensors"].items():
        if "unknown" in sensor:
            lines.append(f"{name}: {sensor['unknown']}")
        else:
            window = f"window {sensor['window_s'] * 1e3:.0f} ms (duty {percent(sensor['duty'], 0)})"
            lines.append(
                f"{name}: period {sensor['period_s'] * 1e3:.1f} ms, {window}, lag {sensor['lag_s'] * 1e3:.0f} ms"
            )
    return Answer({"card": arguments.out, "sensors": card["sensors"]}, "\n".join(lines))
