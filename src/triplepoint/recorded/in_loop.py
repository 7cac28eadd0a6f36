"""Record a training loop that marks its own steps: `with triplepoint.record() as recorder`."""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from triplepoint.errors import UserError, nearest
from triplepoint.recorded.description import Description
from triplepoint.recorded.marks import SESSION, Marks, local_rank_of
from triplepoint.recorded.session import ask_for_window, make_setup, read_window

if TYPE_CHECKING:
    from triplepoint.recorded.session import Session

_READY_S = 20.0
"""Longest time that a loop waits for its watcher, which imports for about a second; after it the loop starts without
samples. Unit: s."""


class LoopRecorder:
    """Recorder that marks the steps of a loop. The first rank of each node starts a watcher process, which samples."""

    def __init__(self, results: Path, config: Path, setup: dict[str, Any], window: tuple[int, int] | None) -> None:
        """Record nothing until the `with` block begins.

        Args:
            results: Folder of results.
            config: Folder of the configuration.
            setup: Content of `session.json`, from `make_setup`.
            window: First profiled step and the one after the last; None without profiling.
        """
        self._results, self._config, self._setup, self._window = results, config, setup, window
        self._marks: Marks | None = None
        self._session: Session | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LoopRecorder":
        """Start the recording; under `triplepoint record`, which samples already, only mark steps."""
        if SESSION in os.environ:
            folder = Path(os.environ[SESSION])
        else:
            self._session = self._begin()
            folder = self._session.folder
        # The hook of `triplepoint record` may mark too; calls are the most certain source, so they are used.
        self._marks = Marks(folder, None, "calls", "loop")
        self._marks.begin()
        return self

    def step(self) -> None:
        """End a step and begin the next one; call it once for every update of the parameters."""
        if self._marks is None:
            raise RuntimeError("recorder.step() outside of 'with triplepoint.record() as recorder'")
        self._marks.mark("calls")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the recording; a watcher writes the run when all ranks have left their loops."""
        if self._marks is not None:
            self._marks.end()
        if self._session is None:
            return
        is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        is_ok = kind is None or (isinstance(error, SystemExit) and not error.code)
        message = [] if is_ok else traceback.format_exception_only(kind, error)
        status = None if is_ok else -signal.SIGINT if is_interrupted else 1
        self._session.note_end(status, sys.argv, "".join(message).strip().splitlines())
        self._session.remove_member(os.getpid())
        if self._watcher is not None:
            self._watcher.terminate()
            self._watcher.wait()

    def _begin(self) -> "Session":
        """Join the recording of this job; in the first rank of a node, start the watcher of the node."""
        from triplepoint.recorded.session import Session, job_key

        session = Session.join(self._results, self._setup, job_key())
        if self._window is not None:
            ask_for_window(session.folder, *self._window)
        if local_rank_of() == 0:
            command = [sys.executable, "-m", "triplepoint", "record", "--pid", str(os.getpid())]
            command += ["--session", str(session.folder), "--results", str(self._results)]
            command += ["--config", str(self._config)]
            # In a process session of its own, since Ctrl-C is for the loop; the watcher then sees the loop's end.
            self._watcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            deadline = time.monotonic() + _READY_S
            while not session.has_begun() and self._watcher.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
        return session


def record(
    results: str | Path = "results",
    config: str | Path = "config",
    *,
    study: str = "recorded",
    describe: str | Path | None = None,
    name: str | None = None,
    warmup: int = 2,
    profile: str | None = None,
    **settings: Any,
) -> LoopRecorder:
    """Return a recorder of a training loop, for use as `with triplepoint.record() as recorder`.

    Call `recorder.step()` at the end of each iteration. Under torchrun, srun or mpirun every rank does the same, and
    the first rank of each node samples. The run is in RESULTS/runs after the block.

    Args:
        results: Folder of results.
        config: Folder of the configuration, for named models and clusters.
        study: Study of recorded runs that the run is added to.
        describe: YAML file with a description of the job; None without one.
        name: Name of the job; None for the name of its script.
        warmup: Number of first steps that are not measured.
        profile: Steps to profile, such as `20:22` for steps 20 and 21; None for none.
        settings: Settings of the job, under the keys of a study: `model="llama3-8b", tp=8`.

    Raises:
        UserError: If an argument is wrong.
    """
    # The hint for a misspelt setting may be an argument of this function.
    known = {*Description.model_fields, "results", "config", "study", "describe", "warmup", "profile"}
    if unknown := [name for name in settings if name not in Description.model_fields]:
        raise UserError(f"triplepoint.record: unknown argument {unknown[0]!r}{nearest(unknown[0], known)}")
    setup = make_setup(
        sys.argv,
        Path(config),
        study=study,
        describe=None if describe is None else Path(describe),
        settings=settings,
        name=name,
        warmup=warmup,
        folder=Path.cwd(),
    )
    return LoopRecorder(Path(results), Path(config), setup, None if profile is None else read_window(profile))
