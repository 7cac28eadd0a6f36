"""`triplepoint export STUDY --to mlflow|wandb|prometheus|chakra`."""

import argparse
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_results, make_parser, out_file, out_folder
from triplepoint.errors import UserError

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
        "Write the runs of a study in the format of another tool. Only files are written: nothing is sent.",
        [
            "triplepoint export parallelism --to mlflow --out mlruns",
            "triplepoint export parallelism --to wandb",
            "triplepoint export parallelism --to prometheus --out /var/lib/node_exporter/parallelism.prom",
            "triplepoint export parallelism --to chakra --out chakra",
        ],
        "mlflow: an experiment in MLflow's file store; 'MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri "
        "mlruns' shows it.\n"
        "wandb: offline runs in OUT/wandb; the library wandb writes them and 'wandb sync' sends them.\n"
        "prometheus: power, heat and clocks of nodes and GPUs for node_exporter's textfile collector.\n"
        "chakra: OUT/RUN/chakra.RANK.et, the traces of runs as MLCommons' Chakra execution traces.",
        answer={"to": "format", "num_runs": "runs of the study", "files": "folder of each run, or the file"},
    )
    parser.add_argument("study", metavar="STUDY", help="study whose runs are exported; its tables must exist")
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

    runs = read_runs(arguments.study, arguments.results)
    if kind == "prometheus":
        files = prometheus.write(arguments.study, runs, arguments.results, target)
    elif kind == "chakra":
        from triplepoint.trace.taxonomy import load_scheme

        files = chakra.write(arguments.study, runs, arguments.results, target, load_scheme())
    else:
        files = (mlflow if kind == "mlflow" else wandb).write(arguments.study, runs, target)
    content = {"to": kind, "num_runs": len(runs), "files": files}
    return Answer(content, f"{len(runs)} runs of {arguments.study} are in {target}{_NEXT[kind].format(out=target)}")
