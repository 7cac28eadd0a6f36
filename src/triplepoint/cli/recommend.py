"""`triplepoint recommend RUN`."""

import argparse
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_run, make_parser, out_file, run_folder, say

_ABOUT = """\
A slot passport is learned from the run's telemetry and kept in RESULTS/passports/CLUSTER.json. GPUs and nodes that cost
time are named first. Then the order of hosts and the layers of pipeline stages are searched. Another placement is
recommended only if the lower end of the 90 % interval of its gain is above 0. Nothing is applied.
"""
_ANSWER = {
    "passport": "resistance, contact, preheat, leakage and clock of each slot, and what all nodes share",
    "outliers": "GPUs and nodes that cost time, and how much",
    "drift": "slots whose resistance changed since the passport before",
    "step_time_s": "median measured step",
    "predicted_step_time_s": "the same as predicted with the passport",
    "proposed_step_time_s": "step under the best placement found; null where none is shorter",
    "is_accepted": "whether the other placement is recommended",
    "gain": "share of a step that it saves",
    "gain_lo": "lower end of its 90 % interval",
    "gain_hi": "upper end",
    "hosts": "hosts in rank order",
    "pipeline_layers": "layers of each stage",
    "megatron_layout": "the same for --pipeline-model-parallel-layout",
    "reasons": "what limits the step before and after, and why it is recommended or not",
}


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "recommend",
        "Recommend where pipeline stages run and how many layers they have, hardware faults first.",
        [
            "triplepoint recommend llama3-70b_h200x32_tp4-pp4-dp2_mbs1_r1",
            "triplepoint recommend llama3-70b_h200x32_tp4-pp4-dp2_mbs1_r1 --layers 21,19,21,19",
        ],
        _ABOUT,
        answer=_ANSWER,
    )
    add_run(made)
    made.add_argument(
        "--layers", type=_layers, default=(), metavar="N,N,...",
        help="judge these layers of stages, in place of a search (default: search)",
    )  # fmt: skip
    made.add_argument(
        "--hosts", type=out_file, metavar="FILE", help="write the hosts in rank order, one a line (default: none)"
    )
    add_config(made)
    return made


def run(arguments: argparse.Namespace) -> Answer:
    """Learn, search and say what to do."""
    from triplepoint.advise.passport_file import find_drift, keep, last_before
    from triplepoint.advise.recommend import advise
    from triplepoint.advise.recommend_text import content, hosts_in_order, render

    if (of_sensors := _of_sensors(arguments)) is not None:
        return of_sensors
    advice = advise(run_folder(arguments), arguments.config, arguments.layers)
    results: Path = arguments.results
    before = last_before(advice.passport, results)
    drift = find_drift(before, advice.passport) if before else []
    say(f"recommend: passport kept in {keep(advice.passport, results)}")
    if arguments.hosts:
        from triplepoint.files import write_text

        placement = advice.proposed if advice.is_accepted and advice.proposed else advice.present
        write_text(arguments.hosts, "\n".join(hosts_in_order(advice, placement)) + "\n")
        say(f"recommend: hosts in rank order in {arguments.hosts}")
    return Answer(content(advice, drift), render(advice, drift))


def _of_sensors(arguments: argparse.Namespace) -> Answer | None:
    """Return what sensors say of a recorded run whose cluster or job nobody described; None of other runs."""
    from triplepoint.advise.sensed import content, is_described, render
    from triplepoint.compare.sides import Context
    from triplepoint.trace.taxonomy import load_scheme
    from triplepoint.why.sources import why

    folder: Path = arguments.results / "runs" / str(arguments.run)
    if not (folder / "point.json").is_file() or is_described(folder, arguments.config):
        return None
    found = why(str(folder), Context(arguments.results, arguments.config, load_scheme()))
    return Answer(dict.fromkeys(_ANSWER) | content(folder, found), render(folder, found))


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas, such as 21,19,21,19") from None
    if min(layers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a stage cannot have fewer than 0 layers")
    return layers
