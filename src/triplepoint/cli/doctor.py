"""`triplepoint doctor`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, say, seconds, whole_number

if TYPE_CHECKING:
    from triplepoint.doctor.check import Expected
    from triplepoint.doctor.probe import ProbePlan

MAX_MIB = 65536
"""Largest message of a measurement: half of the memory of the largest GPU in the catalogue. Unit: MiB."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "doctor",
        "Check this machine, or all nodes of a cluster, before GPU hours are spent. Nothing is changed on them. "
        "Exit status 0: nothing failed; 1: something did; 2: an error you can correct. With --files check the "
        "configuration instead.",
        ["triplepoint doctor", "triplepoint doctor --cluster h200x32 --measure 60", "triplepoint doctor --files h200"],
        answer={
            "name": "cluster, or host name of this machine",
            "checked_at": "time of the check, UTC, ISO 8601",
            "has_failed": "whether a check failed",
            "checks": "name, status, what was found and what was expected of each check",
            "nodes": "what was read on every node",
            "wrote": "files that were written",
            "files": "with --files: the files of the configuration, and what is wrong or missing",
        },
    )
    parser.add_argument(
        "--files",
        nargs="*",
        metavar="NAME",
        help="check the files of these GPU types and clusters of CONFIG (default: all), and say what a missing one "
        "costs; exit status 2 if a file is broken",
    )
    parser.add_argument("--cluster", metavar="NAME", help="a cluster of CONFIG/clusters (default: this machine)")
    parser.add_argument(
        "--nodes", type=whole_number(), metavar="N", help="check only N of the cluster's nodes (default: all)"
    )
    parser.add_argument(
        "--measure",
        type=seconds(0.001, 86400),
        metavar="SECONDS",
        help="also measure collectives and every GPU, for about SECONDS (default: no measurement)",
    )
    parser.add_argument(
        "--ranks", type=whole_number(), metavar="N", help="ranks of the measurement on each node (default: one a GPU)"
    )
    parser.add_argument(
        "--largest", type=whole_number(MAX_MIB), default=256, metavar="MIB", help="largest message of the measurement"
    )
    add_config(parser)
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Check and report; the exit status is 1 if a check failed, 2 if a file of the configuration is broken."""
    import socket
    from datetime import UTC, datetime

    from triplepoint.doctor.diagnosis import as_json, as_text, diagnose, write_tables
    from triplepoint.doctor.probe import probe_nodes
    from triplepoint.files import write_json

    if arguments.files is not None:
        return _check_files(arguments)
    expected = _expected(arguments)
    cluster, started = expected.cluster, datetime.now(UTC)
    name = cluster.name if cluster else socket.gethostname()
    plan = _plan(arguments, expected)
    folder = new_folder(arguments.results.resolve() / "doctor" / name, f"{started:%Y%m%dT%H%M%S}")
    probe_nodes(folder, plan, cluster, say)
    diagnosis = diagnose(folder, plan.num_nodes, expected)
    report = as_json(diagnosis, name, started.isoformat(timespec="seconds"))
    write_json(folder / "report.json", report)
    tables = write_tables(diagnosis, folder, name, expected, f"doctor-{name}-{started:%Y-%m-%d}")
    wrote = [folder / "report.json", *tables]
    for path in wrote:
        say(f"doctor: wrote {path}")
    return Answer(report | {"wrote": wrote}, as_text(diagnosis), int(diagnosis.has_failed))


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder and return it; its name gets a number if a check that began in the same second has that name."""
    folder, number = parent / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = parent / f"{name}-{number}"
        else:
            return folder


def _check_files(arguments: argparse.Namespace) -> Answer:
    """Check the files of the configuration instead of machines."""
    from triplepoint.doctor.config_files import as_table, check_files
    from triplepoint.errors import USER_ERROR, UserError

    if arguments.cluster or arguments.nodes or arguments.measure or arguments.ranks:
        raise UserError(
            "--files checks the configuration, not machines; leave the other options out, or run them without --files"
        )
    checks = check_files(arguments.files, arguments.config)
    status = USER_ERROR if any(check.status == "broken" for check in checks) else 0
    return Answer({"files": checks}, as_table(checks), status)


def _expected(arguments: argparse.Namespace) -> "Expected":
    """Return the expected values of the cluster; none for this machine."""
    from triplepoint.config.catalogue import Catalogue
    from triplepoint.doctor.check import Expected
    from triplepoint.errors import UserError

    if arguments.cluster is None:
        if arguments.nodes:
            raise UserError("--nodes without --cluster: this machine is one node; name a cluster of config/clusters")
        return Expected()
    catalogue = Catalogue(arguments.config)
    cluster = catalogue.cluster(arguments.cluster)
    if arguments.nodes and arguments.nodes > cluster.num_nodes:
        raise UserError(f"--nodes {arguments.nodes}: cluster {cluster.name} has {cluster.num_nodes}")
    return Expected.of(cluster, catalogue)


def _plan(arguments: argparse.Namespace, expected: "Expected") -> "ProbePlan":
    """Return which nodes to probe, and what to measure on them."""
    from triplepoint.doctor.probe import ProbePlan
    from triplepoint.units import MIB

    cluster = expected.cluster
    has_gpus = cluster is not None and cluster.device != "cpu"
    return ProbePlan(
        num_nodes=(arguments.nodes or cluster.num_nodes) if cluster else 1,
        device=cluster.device if cluster else "any",
        ranks_per_node=arguments.ranks or (cluster.gpus_per_node if cluster and has_gpus else 0),
        measure_s=arguments.measure,
        most_bytes=arguments.largest * MIB,
    )
