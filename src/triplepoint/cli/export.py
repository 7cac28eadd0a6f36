"""`triplepoint export STUDY|RUN --to mlflow|wandb|prometheus|chakra`."""

import argparse
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_results, is_run_folder, make_parser, out_file, out_folder, run_folder
from triplepoint.cli.progress import Progress
from triplepoint.errors import UserError
from triplepoint.units import counted

_DEFAULT_OUT = {"mlflow": "mlruns", "wandb": ".", "prometheus": "triplepoint.prom", "chakra": "chakra"}
"""Where each format is written to by default."""
_NEXT = {
    "mlflow": "; look at them with: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {out}",
    "wandb": "; send them with: wandb sync {out}/wandb/offline-run-*",
    "prometheus": "; node_exporter reads it with --collector.textfile.directory",
    "chakra": "; 'triplepoint trace' and ASTRA-sim read them",
}
"""Next step with the written files."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "export",
        "Write the runs of a study, or a run, in the format of another tool. Only files are written: nothing is sent.",
        [
            "triplepoint export parallelism --to mlflow --out mlruns",
            "triplepoint export parallelism --to wandb",
            "triplepoint export parallelism --to prometheus --out /var/lib/node_exporter/parallelism.prom",
            "triplepoint export RUN --to chakra --out chakra",
        ],
        "mlflow: an experiment in MLflow's file store; 'MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri "
        "mlruns' shows it.\n"
        "wandb: offline runs in OUT/wandb; the library wandb writes them and 'wandb sync' sends them.\n"
        "prometheus: power, heat and clocks of nodes and GPUs for node_exporter's textfile collector.\n"
        "chakra: OUT/RUN/chakra.RANK.et, the traces of runs as MLCommons' Chakra execution traces.",
        answer={"to": "format", "num_runs": "runs that were exported", "files": "folder of each run, or the file"},
    )
    parser.add_argument(
        "study", metavar="STUDY|RUN", help="study whose runs are exported, with tables; or a run, by id or folder"
    )
    parser.add_argument("--to", choices=tuple(_DEFAULT_OUT), required=True, help="tool that will read the runs")
    parser.add_argument(
        "--out",
        metavar="OUT",
        help="folder to write into, a file for prometheus "
        f"(default: {', '.join(f'{place} for {kind}' for kind, place in _DEFAULT_OUT.items())})",
    )
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Write the runs of the study."""
    kind, out = arguments.to, arguments.out or _DEFAULT_OUT[arguments.to]
    try:
        target: Path = out_file(out) if kind == "prometheus" else out_folder(out)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"export: --out: {error}") from None
    from triplepoint.exports import chakra, mlflow, prometheus, read_runs, wandb
    from triplepoint.exports.runs import read_run

    alone = _run_id(arguments)
    name = alone or arguments.study
    if kind == "chakra":
        from triplepoint.trace.taxonomy import load_scheme

        ids = [alone] if alone else [one.run for one in read_runs(name, arguments.results)]
        with Progress("reading runs") as show:
            files = chakra.write(name, ids, arguments.results, target, load_scheme(), show)
        number = len(files)
    else:
        study, runs = read_run(alone, arguments.results) if alone else (name, read_runs(name, arguments.results))
        number = len(runs)
        if kind == "prometheus":
            files = prometheus.write(study, runs, arguments.results, target)
        else:
            files = (mlflow if kind == "mlflow" else wandb).write(study, runs, target)
    content = {"to": kind, "num_runs": number, "files": files}
    which = f"Run {alone} is" if alone else f"{counted(number, 'run')} of {name} {'is' if number == 1 else 'are'}"
    return Answer(content, f"{which} in {target}{_NEXT[kind].format(out=target)}")


def _run_id(arguments: argparse.Namespace) -> str | None:
    """Return the id of the run that is named, by id or by folder; None where a study is. A study goes first."""
    from triplepoint.exports.runs import has_tables

    name: str = arguments.study
    is_run = is_run_folder(name) or is_run_folder(str(arguments.results / "runs" / name))
    if has_tables(name, arguments.results) or not is_run:
        return None
    arguments.run = name
    folder = run_folder(arguments)
    if folder.parent.name != "runs":
        raise UserError(f"{name}: a run outside of RESULTS/runs is in no table; move it there")
    return folder.name
