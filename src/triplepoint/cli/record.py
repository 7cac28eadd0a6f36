"""`triplepoint record -- COMMAND`: record a job of the user and make a run from it."""

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_job,
    add_results,
    make_parser,
    read_settings,
    say,
    seconds,
    whole_number,
)
from triplepoint.errors import UserError, shown

if TYPE_CHECKING:
    from triplepoint.recorded.record import Watching
    from triplepoint.recorded.session import Session

_MAX_STEPS = 1_000_000


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "record",
        "Record a job of your own: its step times, the power and temperature of each node, and a trace if you ask for "
        "one. It becomes a run in RESULTS/runs, which 'why', 'compare' and the report read; with --describe it is "
        "compared with the prediction. "
        "The exit status of COMMAND is passed on.",
        [
            "triplepoint record -- torchrun --nproc-per-node 8 train.py",
            "srun triplepoint record --describe job.yaml -- python pretrain_gpt.py",
            "triplepoint record --profile 20:22 -- torchrun --nproc-per-node 8 train.py",
            "triplepoint record --pid 4711 --log train.log --step-pattern megatron",
        ],
        "docs/own_job.md tells how steps are marked, which launchers work, and how a job can end.",
        answer={"exit_status": "exit status of the job"},
    )
    _add_targets(parser)
    add_job(parser, "its script")
    parser.add_argument(
        "--steps",
        choices=("auto", "calls", "framework", "profiler", "optimizer", "none"),
        default="auto",
        help="what marks a step in the job's Python processes; auto: the first of calls, framework, profiler and "
        "optimizer that marks one",
    )
    parser.add_argument(
        "--step-pattern",
        metavar="NAME|REGEX",
        help="mark steps by lines of the job's output: megatron, deepspeed, torchtitan, huggingface, lightning, or a "
        "regular expression (default: none)",
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="with --pid or --job: file with the job's output, for --step-pattern (default: none)",
    )
    parser.add_argument(
        "--warmup",
        type=whole_number(_MAX_STEPS, least=0),
        default=2,
        metavar="N",
        help="number of first steps that count as warm-up",
    )
    parser.add_argument(
        "--profile",
        metavar="FIRST:LAST",
        help="steps to profile, LAST excluded: 20:22 are steps 20 and 21 (default: none)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda", "rocm"), help="what the job computes on (default: what this machine has)"
    )
    parser.add_argument("--period", type=seconds(0.001, 3600), default=0.1, metavar="S", help="seconds between samples")
    parser.add_argument(
        "--fast-period",
        type=seconds(0.001, 3600),
        default=0.05,
        metavar="S",
        help="seconds between samples of GPU power",
    )
    add_config(parser)
    add_results(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the job")
    return parser


def _add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a job or a recording instead of a command."""
    parser.add_argument(
        "--pid",
        type=whole_number(2**22),
        metavar="PID",
        help="record a process that runs already, until it ends (default: COMMAND)",
    )
    parser.add_argument(
        "--job",
        metavar="ID",
        help="record a Slurm job that runs already, on all its nodes, until it ends (default: none)",
    )
    parser.add_argument(
        "--finish",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="turn recordings whose 'triplepoint record' was killed into runs (default: all of them)",
    )
    parser.add_argument(
        "--profile-now",
        type=whole_number(_MAX_STEPS),
        metavar="STEPS",
        help="profile the next STEPS steps of a job that is being recorded (default: none)",
    )
    parser.add_argument(
        "--session",
        metavar="FOLDER",
        help="the recording that --profile-now profiles (default: the only one under way)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Record the job; the exit status is that of its command."""
    status = _record(arguments)
    return Answer({"exit_status": status}, status=status)


def _record(arguments: argparse.Namespace) -> int:
    """Do what the options ask for, and return the exit status. Raises `UserError` unless one job is named."""
    command = _command(arguments)
    targets = [name for name in ("pid", "job", "finish", "profile_now") if getattr(arguments, name) is not None]
    if len(targets) + bool(command) != 1:
        options = [f"--{name.replace('_', '-')}" for name in targets] + ["-- COMMAND"] * bool(command)
        raise UserError(
            f"record: {' and '.join(options) or 'no job is named'}; give one of -- COMMAND, --pid, --job, --finish and "
            "--profile-now, such as 'triplepoint record -- torchrun train.py'"
        )
    if arguments.finish is not None:
        return _finish_all(arguments)
    if arguments.profile_now is not None:
        return _profile_now(arguments)
    setup = _setup_of(arguments)
    if arguments.job is not None:
        from triplepoint.recorded.record import record_job

        return record_job(
            arguments.job, arguments.results, setup, _watching(arguments), arguments.log, _finish_one(arguments)
        )
    return _watch(arguments, command, setup)


def _setup_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the recording, which all nodes read."""
    from triplepoint.recorded.session import make_setup

    setup = make_setup(
        _job_of(arguments),
        arguments.config,
        study=arguments.study,
        describe=arguments.describe,
        settings=read_settings(arguments.set, "record"),
        name=arguments.name or (f"job-{arguments.job}".replace("_", "-") if arguments.job else None),
        warmup=arguments.warmup,
        folder=_folder_of(arguments),
    )
    return setup | {"steps": "log" if arguments.step_pattern else arguments.steps}


def _folder_of(arguments: argparse.Namespace) -> Path | None:
    """Return the working directory of the job; None for a Slurm job, which only its nodes know."""
    if arguments.job is not None:
        return None
    return Path.cwd() if arguments.pid is None else Path(f"/proc/{arguments.pid}/cwd")


def _command(arguments: argparse.Namespace) -> list[str]:
    words: list[str] = arguments.command
    return words[1:] if words[:1] == ["--"] else words


def _job_of(arguments: argparse.Namespace) -> list[str]:
    """Return the command of the job; for a running process, the one that the kernel reports."""
    if arguments.pid is None:
        return _command(arguments)
    try:
        words = Path(f"/proc/{arguments.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    return [word for word in words if word]


def _watch(arguments: argparse.Namespace, command: list[str], setup: dict[str, Any]) -> int:
    """Record a command or a running process on this node, and make a run if this node is the last to finish.

    Returns:
        Exit status of the command; 0 for a process.
    """
    from triplepoint.processes import start_ticks
    from triplepoint.recorded.record import record_command, record_process
    from triplepoint.recorded.session import Session, ask_for_window, job_key, read_window

    watching, status = _watching(arguments), 0
    window = None if arguments.profile is None else read_window(arguments.profile)
    if arguments.pid is not None and start_ticks(arguments.pid) is None:
        raise UserError(f"record: --pid {arguments.pid}: no such process on this node")
    if command:
        _check_program(command[0])
    if arguments.session and arguments.pid is not None:
        session = _open_sessions(arguments, arguments.session)[0]
    else:
        session = Session.join(arguments.results, setup, job_key() if command else None)
    if window is not None:
        ask_for_window(session.folder, *window)
    if command:
        status = record_command(session, command, watching, sys.stderr if arguments.json else sys.stdout)
    else:
        record_process(session, arguments.pid, watching, arguments.log)
    if session.problem is not None:
        say(f"triplepoint: {session.problem.strerror}; {_kept(arguments, session)}")
    elif session.is_over() and session.claim_finish():
        _finish_one(arguments)(session)
    return status


def _kept(arguments: argparse.Namespace, session: "Session") -> str:
    """Return the advice on how to make a run from a recording that could not be finished."""
    command = f"triplepoint record --finish {shlex.quote(str(session.folder))} --results {arguments.results}"
    return f"the recording is kept, make a run of it with '{command}'"


def _finish_one(arguments: argparse.Namespace) -> Any:
    """Return a function that makes a run from a recording and reports it.

    It reports errors too and raises none, because they must not change the exit status of the job.
    """

    def finish_session(session: "Session") -> None:
        from triplepoint.manifest import read_manifest
        from triplepoint.recorded.finish import finish, notes_of
        from triplepoint.recorded.job import NothingRecordedError
        from triplepoint.recorded.run import sum_up

        study = session.setup().get("study", arguments.study)
        try:
            run_name = finish(session, arguments.results, arguments.config)
        except NothingRecordedError as error:
            shutil.rmtree(session.folder, ignore_errors=True)
            say(f"triplepoint: {error}")
            return
        except (UserError, OSError) as error:
            (session.folder / "finish").rmdir()
            reason = f"{error.filename2 or error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            advice = f"{_kept(arguments, session)}, and --set KEY=VALUE where the description is wrong"
            say(f"triplepoint: {reason}; {advice}")
            return
        folder = arguments.results / "runs" / run_name
        say(f"triplepoint: recorded as {folder}: {sum_up(folder)}")
        for note in notes_of(read_manifest(folder / "raw" / "manifest.json")):
            say(f"triplepoint: note: {note}")
        say(f"triplepoint: why it is slow: triplepoint why {shlex.quote(str(folder))}")
        if Path("Snakefile").is_file():
            say(f"triplepoint: its figures and page: snakemake report --config 'studies=[{study}]'")

    return finish_session


def _watching(arguments: argparse.Namespace) -> "Watching":
    """Return how to sample and to find steps. Raises `UserError` if options contradict each other."""
    from triplepoint.recorded.patterns import step_pattern
    from triplepoint.recorded.record import Watching, find_device

    if arguments.step_pattern is not None:
        step_pattern(arguments.step_pattern)
    is_attached = arguments.pid is not None or arguments.job is not None
    if arguments.log is not None and not (is_attached and arguments.step_pattern):
        raise UserError(
            "record: --log is for --step-pattern with --pid or --job; the output of -- COMMAND is read without it"
        )
    if is_attached and arguments.step_pattern and arguments.log is None:
        raise UserError("record: --step-pattern with --pid or --job needs --log FILE, the file with the job's output")
    if arguments.log is not None and not arguments.log.is_file():
        raise UserError(f"record: --log {arguments.log}: no such file; name the file that the job writes its output to")
    device = arguments.device or find_device()
    return Watching(device, arguments.period, arguments.fast_period, arguments.steps, arguments.step_pattern)


def _check_program(program: str) -> None:
    if shutil.which(program) is None:
        is_file = Path(program).is_file()
        problem = f"not executable; 'chmod +x' it, or write -- python {program}" if is_file else (
            "no such program; expected a command after --, such as -- python train.py"
        )  # fmt: skip
        raise UserError(f"record: {program!r}: {problem}")


def _open_sessions(arguments: argparse.Namespace, folder: str | None) -> "list[Session]":
    """Return the recordings under way: the one in a folder, or all of them.

    Raises:
        UserError: If the folder is not a recording.
    """
    from triplepoint.recorded.marks import SETUP
    from triplepoint.recorded.session import Session, open_folder

    sessions = [Session(path.parent) for path in sorted(open_folder(arguments.results).glob(f"*/{SETUP}"))]
    if not folder:
        return sessions
    if not (Path(folder) / SETUP).is_file():
        known = ", ".join(str(session.folder) for session in sessions)
        raise UserError(f"record: {folder}: no recording under way; found {known or 'none'}")
    return [Session(Path(folder))]


def _words(session: "Session") -> str:
    """Return the command of a recording for a message."""
    return shown(shlex.join(session.setup().get("command", ())))


def _finish_all(arguments: argparse.Namespace) -> int:
    """Make runs from recordings whose processes have ended; return 1 if one could not be finished."""
    from triplepoint.files import write_json
    from triplepoint.recorded.marks import SETUP
    from triplepoint.recorded.session import describe_again

    settings = read_settings(arguments.set, "record")
    sessions = _open_sessions(arguments, arguments.finish or None)
    unfinished = [session for session in sessions if arguments.finish or session.is_abandoned()]
    if not unfinished:
        under_way = [f"{session.folder} ({_words(session)})" for session in sessions]
        say(
            f"triplepoint: record: nothing to finish in {arguments.results}; recordings under way: "
            f"{', '.join(under_way) or 'none'}"
        )
    for session in unfinished:
        if settings or arguments.describe:
            setup = describe_again(session.setup(), arguments.config, arguments.describe, settings)
            write_json(session.folder / SETUP, setup)
        session.claim_finish()
        _finish_one(arguments)(session)
    return int(any(session.folder.exists() for session in unfinished))


def _profile_now(arguments: argparse.Namespace) -> int:
    """Request a profiled window from the ranks of a recording, far enough ahead to begin at one step."""
    from triplepoint.recorded.finish import next_common_step
    from triplepoint.recorded.session import ask_for_window

    sessions = _open_sessions(arguments, arguments.session)
    if not sessions:
        raise UserError(
            f"record: --profile-now: no recording is under way in {arguments.results}; name its folder of results with "
            "--results"
        )
    if len(sessions) != 1:
        names = ", ".join(f"{session.folder} ({_words(session)})" for session in sessions)
        raise UserError(
            f"record: --profile-now: {len(sessions)} recordings are under way: {names}; name one with --session"
        )
    first = next_common_step(sessions[0].folder)
    ask_for_window(sessions[0].folder, first, first + arguments.profile_now)
    print(f"steps {first} to {first + arguments.profile_now - 1} will be profiled", file=sys.stderr)
    return 0
