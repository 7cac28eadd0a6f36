"""`triplepoint recommend RUN` and `triplepoint recommend CLUSTER`."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_results,
    check_finished,
    is_run_folder,
    make_parser,
    number,
    out_figure,
    out_file,
    out_study,
    plan_command,
    read_settings,
    run_folder,
    say,
)
from triplepoint.cli.progress import Progress
from triplepoint.errors import UserError

if TYPE_CHECKING:
    from triplepoint.advise.recommend.advice import Advice

_MOST_MINUTES = 60 * 24 * 7
_MOST_WATTS = 100_000
_NEED_A_JOB = ("layers", "spare_watts", "goal", "hosts", "caps", "study")
"""Options without effect on a run whose cluster or job is not described."""
_ABOUT = """\
The telemetry of RUN shows how each GPU is cooled and how much it leaks; this passport is kept in
RESULTS/passports/CLUSTER.json. Hardware that costs time is named first, also what 'triplepoint why' finds in the run.
Then the order of hosts, the layers of pipeline stages and the micro-batch are searched, then power limits of single
GPUs. With CLUSTER in place of RUN, name the job with --set; the last kept passport is used, or the cluster as its file
describes it.

A change is recommended only if the lower end of its 90 % interval is above 0, and if the step of the run is as
predicted. Nothing is applied. The method is in docs/recommend.md.
"""
_ANSWER = {
    "answer": "a few sentences",
    "passport": "resistance, contact, preheat, leakage and clock of each slot, and what all nodes share; or null",
    "outliers": "GPUs and nodes that stand out, and the time that each costs with its 90 % interval",
    "drift": "slots whose resistance changed since the passport before",
    "step_time_s": "median measured step; null without a run",
    "predicted_step_time_s": "the same as predicted with the passport",
    "unexplained": "how both differ, and what may be the reason; null if the step is as predicted",
    "proposed_step_time_s": "step under the best placement found; null where none is shorter",
    "is_accepted": "whether the other placement is recommended",
    "gain": "share of a step that it saves",
    "gain_lo": "lower end of its 90 % interval",
    "gain_hi": "upper end",
    "payback_h": "training after which it has made up for a restart (h)",
    "hosts": "hosts in rank order",
    "micro_batch_size": "sequences of a micro-batch",
    "pipeline_layers": "layers of each stage",
    "megatron_layout": "the same for --pipeline-model-parallel-layout",
    "reasons": "what limits the step before and after, and why it is recommended or not",
    "considered": "placements with a known gain and its interval, the proposed one first",
    "limits": "power limits of single GPUs: goal, whether recommended, gain with interval, spare_w, limits_w",
    "outlook": "slots that drift within the run, and what a placement gains later; null of a short run",
    "notes": "what could not be determined, and why",
    "study": "file that was written, with pairs and order of its runs; or null",
    "figure": "file that was written, or null",
    "ledger": "with --ledger or --found, alone: promised and found gains",
}


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "recommend",
        "Recommend what to repair, where to place pipeline stages, and which power limits to set.",
        [
            "triplepoint recommend llama3-70b_h200x32_tp4-pp4-dp2_mbs1_r1",
            "triplepoint recommend llama3-70b_h200x32_tp4-pp4-dp2_mbs1_r1 --layers 21,19,21,19",
            "triplepoint recommend h200x32 --set model=llama3-70b --set tp=8 --set pp=4 --set global_batch_size=128",
            "triplepoint recommend --ledger",
        ],
        _ABOUT,
        answer=_ANSWER,
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN|CLUSTER",
        help="run id, or the folder of a run; or a file in config/clusters",
    )
    add_results(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="with CLUSTER: a setting of the job; repeatable (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--layers", type=_layers, default=(), metavar="N,N,...",
        help="judge this split of layers over stages (default: search for one)",
    )  # fmt: skip
    parser.add_argument(
        "--restart-minutes",
        type=number(0, _MOST_MINUTES, "minutes", is_least_allowed=False),
        default=15,
        metavar="MIN",
        help="minutes that a restart of the job costs",
    )
    parser.add_argument(
        "--spare-watts",
        type=number(0, _MOST_WATTS, "watts"),
        default=0,
        metavar="W",
        help="power that each node has to spare besides its GPUs, such as that of CPUs with lower limits",
    )
    parser.add_argument(
        "--goal",
        choices=("save", "move"),
        help="power limits that save energy, or that move power to slow GPUs to save time (default: both; --caps and "
        "--study take those that save time)",
    )
    parser.add_argument(
        "--hosts", type=out_file, metavar="FILE", help="write the hosts in rank order, one per line (default: none)"
    )
    parser.add_argument(
        "--caps",
        type=out_file,
        metavar="FILE",
        help="write the power limits as a script (default: none)",
    )
    parser.add_argument(
        "--study", type=out_study, metavar="FILE", help="write a study that verifies the gain, .yaml (default: none)"
    )
    parser.add_argument("--figure", type=out_figure, metavar="FILE", help=".pdf, .png or .svg to draw (default: none)")
    parser.add_argument(
        "--found",
        nargs=2,
        metavar=("A", "B"),
        help="add a pair of finished runs, before and after, to the ledger and print it (default: none)",
    )
    parser.add_argument("--ledger", action="store_true", help="print promised and measured gains, nothing else")
    add_config(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Recommend changes for a run or a cluster, or show the ledger."""
    from triplepoint.advise.recommend.content import content
    from triplepoint.advise.recommend.kept_passports import find_drift, keep, last_before
    from triplepoint.advise.recommend.text import render

    if arguments.ledger or arguments.found:
        _say_unused(arguments, (*_NEED_A_JOB, "figure"), "the ledger alone is shown")
        return _ledger(arguments)
    folder = _named_run(arguments)
    results: Path = arguments.results
    if folder is not None and (answer := _answer_from_sensors(arguments, folder)) is not None:
        return answer
    advice = _advise(arguments, folder)
    drift = []
    if advice.passport is not None and advice.measured_s.size:
        before = last_before(advice.passport, results)
        drift = find_drift(before, advice.passport) if before else []
        say(f"recommend: passport kept in {keep(advice.passport, results)}")
    _write(arguments, advice)
    study = _promise(arguments, advice)
    minutes = arguments.restart_minutes
    text = f"{render(advice, drift, minutes)}{_next(arguments, advice, study is not None)}"
    return Answer(content(advice, drift, minutes) | {"study": study, "figure": arguments.figure}, text)


def _next(arguments: argparse.Namespace, advice: "Advice", has_study: bool) -> str:
    """Return the end of the text: the next command to run, if something is recommended."""
    if has_study:
        command = plan_command(arguments.study, arguments.config, [advice.site.point.cluster.name])
        return f"\n\nNext: {command}"
    if advice.is_accepted or advice.accepted_limits:
        return "\n\nNext: the same command with --study FILE.yaml writes a study that verifies the gain."
    return ""


def _named_run(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the run that is named; None if a cluster or nothing is named.

    Raises:
        UserError: If there is no such run or cluster, or a run is given settings.
    """
    name, config = arguments.run, arguments.config
    if name is None:
        return None
    is_run = is_run_folder(name) or (arguments.results / "runs" / name / "point.json").is_file()
    if not is_run and (config / "clusters" / f"{name}.yaml").is_file():
        return None
    if arguments.set:
        raise UserError(f"recommend: --set goes with a cluster, found run {name}, which has its own job; leave it out")
    return run_folder(arguments)


def _advise(arguments: argparse.Namespace, folder: Path | None) -> "Advice":
    """Return the advice for a run in a folder, or for a job on a cluster."""
    from triplepoint.advise.recommend.advice import advise, advise_cluster
    from triplepoint.advise.recommend.kept_passports import last_of
    from triplepoint.advise.recommend.power_limits import GOALS

    name, config = arguments.run, arguments.config
    if name is None:
        raise UserError("recommend: no run; name a run in RESULTS/runs, or a cluster with --set for its job")
    if folder is not None:
        instead = "'triplepoint recommend CLUSTER' with --set, and frontier, whatif and project, ask the simulator"
        check_finished(folder, instead)
        if arguments.goal == "save" and arguments.spare_watts:
            raise UserError(
                f"recommend: --spare-watts {arguments.spare_watts:g}: limits that save energy use no more power; leave "
                "it or --goal save out"
            )
        goals = (arguments.goal,) if arguments.goal else GOALS
        with Progress(f"reading {name}") as progress:
            return advise(folder, config, arguments.layers, progress, arguments.spare_watts, goals)
    for option, given in ("--spare-watts", arguments.spare_watts), ("--goal", arguments.goal):
        if given:
            raise UserError(
                f"recommend: {option} {given}: power limits need the clocks of a run, found cluster {name}; name a run "
                "of the job, or leave it out"
            )
    if not arguments.set:
        raise UserError(f"recommend: {name} is a cluster; name the job, such as --set model=llama3-70b --set tp=4")
    settings, passport = read_settings(arguments.set, "recommend"), last_of(name, arguments.results)
    advice = advise_cluster(name, settings, config, passport, arguments.layers)
    known = f"by the passport of run {passport.run}" if passport else "as its file describes it: no passport is kept"
    say(f"recommend: {name} {known}")
    return advice


def _write(arguments: argparse.Namespace, advice: "Advice") -> None:
    from triplepoint.advise.recommend.to_type import hosts_in_order, script
    from triplepoint.files import write_text

    if arguments.hosts:
        placement = advice.proposed if advice.is_accepted and advice.proposed else advice.present
        write_text(arguments.hosts, "\n".join(hosts_in_order(advice, placement)) + "\n")
        say(f"recommend: hosts in rank order in {arguments.hosts}")
    if arguments.caps and not advice.accepted_limits:
        say(f"recommend: no power limit is recommended: {_not_written(arguments.caps)}")
    elif arguments.caps:
        write_text(arguments.caps, script(advice))
        say(f"recommend: power limits in {arguments.caps}; nothing was set")
    if arguments.figure:
        from triplepoint.advise.recommend.figure import draw
        from triplepoint.figures.write import save

        save(draw(advice), arguments.figure)
        say(f"recommend: figure in {arguments.figure}")


def _not_written(path: Path) -> str:
    return f"{path} is from before, do not use it" if path.exists() else f"{path} was not written"


def _promise(arguments: argparse.Namespace, advice: "Advice") -> dict[str, object] | None:
    """Add the promised gains to the ledger, and write the study on request; return its entry in the JSON."""
    from triplepoint.advise.recommend import ledger, verification
    from triplepoint.files import write_text

    path: Path | None = arguments.study
    promised = verification.accepted(advice)
    if not promised:
        if path is not None:
            say(f"recommend: nothing is recommended, nothing is to verify: {_not_written(path)}")
        return None
    study = verification.follow_up(advice, path.stem, arguments.config) if path is not None else None
    for kind, gain in promised.items():
        runs = study.pairs[kind]._asdict() if study and kind in study.pairs else {}
        entry = ledger.Promise(
            name=advice.name, kind=kind, gain=gain.share, gain_lo=gain.lo, gain_hi=gain.hi, **runs,
            spare_w=verification.spare_of(advice, kind), is_simulated=advice.site.point.engine == "simulated",
        )  # fmt: skip
        say(f"recommend: promised gain ({kind}) kept in {ledger.promise(arguments.results, entry)}")
    if study is None or path is None:
        return None
    write_text(path, study.text)
    if study.left_out:
        say(f"recommend: the study verifies the placement alone: {study.left_out.removeprefix('recommend: --study: ')}")
    number = max(len(pairs.first) for pairs in study.pairs.values())
    say(f"recommend: study of {number} pairs of runs in {path}, for steps that vary by {100 * study.spread:.2f} %")
    return {"file": path, "pairs": number, "spread": study.spread, "order": list(study.order)}


def _ledger(arguments: argparse.Namespace) -> Answer:
    """Return the ledger, after adding the pair of runs of `--found`."""
    from triplepoint.advise.recommend import ledger

    if arguments.run and is_run_folder(arguments.run):
        run_folder(arguments)
    if arguments.found:
        ledger.add_pair(arguments.results, arguments.run, *arguments.found)
    rows = ledger.content(arguments.results)
    return Answer({"ledger": rows}, ledger.render(rows))


def _answer_from_sensors(arguments: argparse.Namespace, folder: Path) -> Answer | None:
    """Return the advice from sensors alone, for a recorded run without a described cluster or job; else None."""
    from triplepoint.advise.recommend.advice import is_described

    if is_described(folder, arguments.config):
        return None
    from triplepoint.advise.recommend.from_sensors import content, render
    from triplepoint.compare.sides import Context
    from triplepoint.trace.taxonomy import load_scheme
    from triplepoint.why.sources import why

    if arguments.figure:
        say(f"recommend: no figure without a described cluster and job: {_not_written(arguments.figure)}")
    _say_unused(arguments, _NEED_A_JOB, "cluster and job are not described")
    explained = why(str(folder), Context(arguments.results, arguments.config, load_scheme()))
    return Answer(dict.fromkeys(_ANSWER) | content(folder, explained), render(folder, explained))


def _say_unused(arguments: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    if unused := [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]:
        say(f"recommend: {' and '.join(unused)} not used, as {reason}")


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas, such as 21,19,21,19") from None
    if min(layers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a stage cannot have fewer than 0 layers")
    return layers
