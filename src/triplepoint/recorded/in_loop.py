"""`with triplepoint.record() as recorder`: a training loop that is recorded and marks its own steps."""

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
"""How long a loop waits for its watcher, which imports for a second; it then goes on, and is sampled later."""


class LoopRecorder:
    """Marks the steps of a loop; in the first rank of a node a watcher samples beside it, in a process of its own."""

    def __init__(self, results: Path, config: Path, setup: dict[str, Any], window: tuple[int, int] | None) -> None:
        """Do nothing until the loop is entered; arguments are those of `record`, checked."""
        self._results, self._config, self._setup, self._window = results, config, setup, window
        self._marks: Marks | None = None
        self._session: Session | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LoopRecorder":
        """Start to record; under `triplepoint record`, which samples already, only the marks."""
        if SESSION in os.environ:
            folder = Path(os.environ[SESSION])
        else:
            self._session = self._begin()
            folder = self._session.folder
        # The hook of `triplepoint record` may mark too: calls are the most certain, and the others are left out.
        self._marks = Marks(folder, None, "calls", "loop")
        self._marks.begin()
        return self

    def step(self) -> None:
        """End a step and begin the next one: to be called once for every update of the parameters."""
        if self._marks is None:
            raise RuntimeError("recorder.step() outside of 'with triplepoint.record() as recorder'")
        self._marks.mark("calls")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the recording; the watcher of this node makes a run of it once all ranks have left their loops."""
        if self._marks is not None:
            self._marks.end()
        if self._session is None:
            return
        is_told = kind is not None and issubclass(kind, KeyboardInterrupt)
        is_well = kind is None or (isinstance(error, SystemExit) and not error.code)
        said = [] if is_well else traceback.format_exception_only(kind, error)
        status = None if is_well else -signal.SIGINT if is_told else 1
        self._session.leave_end(status, sys.argv, "".join(said).strip().splitlines())
        self._session.leave(os.getpid())
        if self._watcher is not None:
            self._watcher.terminate()
            self._watcher.wait()

    def _begin(self) -> "Session":
        """Join the recording of this job, and start the watcher of this node in its first rank."""
        from triplepoint.recorded.session import Session, job_key

        session = Session.join(self._results, self._setup, job_key())
        if self._window is not None:
            ask_for_window(session.folder, *self._window)
        if local_rank_of() == 0:
            command = [sys.executable, "-m", "triplepoint", "record", "--pid", str(os.getpid())]
            command += ["--session", str(session.folder), "--results", str(self._results)]
            command += ["--config", str(self._config)]
            # In a session of its own: Ctrl-C is for the loop, whose end the watcher then sees.
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
    """Return a recorder of a training loop, to be used as `with triplepoint.record() as recorder`.

    Each turn of the loop ends with `recorder.step()`. Under torchrun, srun or mpirun every rank does the same; the
    first on each node samples. The run is in RESULTS/runs when the block is left.

    Args:
        results: Folder of results.
        config: Folder of the configuration, for models and clusters that are named.
        study: Study of recorded runs it belongs to.
        describe: YAML file of what is known of the job.
        name: What the job is called. None: as its script.
        warmup: First steps that are not measured.
        profile: Steps to profile, such as `20:22` for steps 20 and 21.
        settings: What is known of the job, under the keys of a study: `model="llama3-8b", tp=8`.

    Raises:
        UserError: If one of them is wrong.
    """
    # Of what is misspelt the nearest may be an argument of this function.
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
