"""Marks of steps inside a training process, and its profiled window; of the standard library, for any environment.

A mark is a time of the host's monotonic clock: nothing waits for the device. In a loop in steady state the host is held
back by the device once a step, so marks are a step apart; single steps may be off by what was queued.
"""

import atexit
import contextlib
import gzip
import hashlib
import importlib.abc
import importlib.util
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

SESSION = "TRIPLEPOINT_RECORD"
"""Environment variable with the folder of the recording that a process belongs to."""
STEPS_BY = "TRIPLEPOINT_STEPS"
"""Environment variable with what may mark steps: a key of `SOURCES`, `auto` or `none`."""
SETUP = "session.json"
"""File of a recording with what it was told, `variables` among it: how names begin of variables that ranks note."""
REQUEST = "profile.json"
"""File of a recording that asks for a profiled window: `{"first": STEP, "num": STEPS, "ranks": [..] or null}`."""
RANGES = "ranges"
"""Folder of a recording with the name of the library whose ranges mark the window, a file for each rank."""
SOURCES = {
    "calls": "calls of recorder.step()",
    "framework": "the training step of Megatron-LM, DeepSpeed or Hugging Face's Trainer",
    "profiler": "steps of the loop's own torch.profiler",
    "optimizer": "steps of the optimizer",
}
"""What marks steps, the most certain first: once one of them has, those below it are left out."""
_ORDER = tuple(SOURCES)
_LOOK_NS = 200_000_000
"""Between two looks for a request: a stat of a file on a network file system may take a millisecond."""
_FIRST_MARK = {"optimizer": False, "profiler": False, "framework": False, "calls": True}
"""Whether the first mark of a source ends a step: of a hook nobody knows when that step began."""
_SOFTWARE = (
    "torch",
    "deepspeed",
    "megatron.core",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "torchtitan",
    "torchtune",
    "mpi4py",
)
"""Modules whose versions are noted where a rank has imported them."""


def rank_of(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> int:
    """Return the rank that launchers give to a process: 0 where they give none."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 0


def _process_group() -> Any:
    """Return `torch.distributed` where its process group has begun, else None.

    A trainer that starts its ranks itself, as Lightning's or `torch.multiprocessing.spawn`, sets no rank of a launcher.
    """
    group = sys.modules.get("torch.distributed")
    return group if group is not None and group.is_available() and group.is_initialized() else None


def local_rank_of(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> int:
    """Return the rank among those of its node that launchers give to a process: 0 where they give none."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 0


class Marks:
    """Steps of one rank, written as they end: what a kill leaves is whole but for the step it fell into."""

    def __init__(self, session: Path, rank: int | None = None, chosen: str = "auto", writer: str = "rank") -> None:
        """Write into a recording.

        Args:
            session: Folder of the recording.
            rank: Rank of this process. None: that of torch's process group at the first mark, else the launcher's.
            chosen: Key of `SOURCES` that alone may mark, or `auto`.
            writer: Begins the name of the file of steps: each writer has its own.
        """
        self._session, self._chosen, self._writer = session, chosen, writer
        self._rank = rank
        self._source: str | None = None
        self._callers: dict[str, object] = {}
        self._file: Any = None
        self._start_ns = 0
        self._number = 0
        self._window: _Window | None = None
        self._has_failed = False

    def begin(self) -> None:
        """Begin the first step of a loop that marks its own steps."""
        self._start_ns = time.monotonic_ns()

    def mark(self, source: str, caller: object = None) -> None:
        """End a step, and begin the next one.

        Args:
            source: Key of `SOURCES`.
            caller: What was called, of which a source may have several, such as two optimizers: the first alone marks.
        """
        if self._has_failed:
            return
        try:
            self._mark(source, caller, time.monotonic_ns())
        except Exception as error:  # noqa: BLE001  a full disk, say: the training goes on, whatever the recording meets
            with contextlib.suppress(Exception):
                self.end()  # a profiler that runs on would fill the memory
            self._has_failed = True
            _say(self._rank, f"no step is marked any more: {error}")

    def _mark(self, source: str, caller: object, now: int) -> None:
        if self._callers.setdefault(source, caller) != caller:
            return
        if source != self._source and not self._takes(source):
            return
        if self._window is None:
            self._window = _Window(self._session, self._find_rank())
        if self._start_ns:
            kind = self._window.kind
            line = {"rank": self._rank, "step": self._number, "kind": kind, "by": source, "pid": os.getpid()}
            self._write(line | {"t_start_ns": self._start_ns, "t_end_ns": now})
            self._number += 1
        self._window.at_step(self._number, now)
        self._start_ns = time.monotonic_ns()

    def _find_rank(self) -> int:
        if self._rank is None:
            group = _process_group()
            self._rank = rank_of() if group is None else int(group.get_rank())
        return self._rank

    def _takes(self, source: str) -> bool:
        """Return whether a source marks from now on; what a less certain one has marked is begun anew."""
        if self._chosen not in ("auto", source):
            return False
        if self._source is not None and _ORDER.index(source) > _ORDER.index(self._source):
            return False
        if self._source is not None or not _FIRST_MARK[source]:
            self._start_ns = 0
        self._source = source
        return True

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            for folder in ("steps", "ranks"):
                (self._session / folder).mkdir(parents=True, exist_ok=True)
            rank = self._find_rank()
            about, whole = (self._session / "ranks" / f"rank{rank}.{end}" for end in ("part", "json"))
            about.write_text(json.dumps(_this_rank(rank, self._session)))
            about.replace(whole)
            # Buffered by line: each is handed to the operating system as it ends.
            self._file = (self._session / "steps" / f"{self._writer}{self._rank}.jsonl").open("a", buffering=1)
        self._file.write(json.dumps(line) + "\n")

    def end(self) -> None:
        """End a profiled window that the loop did not reach the end of."""
        if self._window is not None and not self._has_failed:
            self._window.close()


class _Window:
    """The profiled window of a rank: from and to a step that a request names."""

    def __init__(self, session: Path, rank: int) -> None:
        self._session, self._rank = session, rank
        self._looked_ns = 0
        self._request: dict[str, Any] | None = None
        self._profiler: Any = None
        self._outside: Any = None
        self._last = 0
        self._span: Any = None
        self.kind = "measured"
        """Kind of the step that is under way; `warmup` after a window, where ranks wait for each other's files."""

    def at_step(self, number: int, now_ns: int) -> None:
        """Start, go on with or end the window between two steps; `number` is that of the step that begins."""
        if self._profiler is None and now_ns - self._looked_ns > _LOOK_NS:
            self._looked_ns = now_ns
            self._look()
        was_profiled = self._profiler is not None
        request = self._request
        if request is not None and self._profiler is None and number >= request["first"]:
            self._request = None
            if request.get("ranks") is None or self._rank in request["ranks"]:
                self._start(number + request["num"])
            elif number == request["first"]:
                self.kind = "warmup"
        elif self._profiler is not None and number >= self._last:
            self.close()
        elif self._span is not None:
            self._span.__exit__(None, None, None)
        if self._profiler is not None:
            self._mark(number)
        self.kind = "profiled" if self._profiler is not None else "warmup" if was_profiled else "measured"

    def _look(self) -> None:
        try:
            request = json.loads((self._session / REQUEST).read_text())
        except (OSError, ValueError):
            return
        if request != getattr(self, "_done", None):
            self._done = self._request = request

    def _start(self, last: int) -> None:
        self._last = last
        torch = sys.modules.get("torch")
        if torch is None:
            spec = importlib.util.spec_from_file_location("_triplepoint_ranges", Path(__file__).with_name("ranges.py"))
            assert spec is not None and spec.loader is not None
            ranges = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(ranges)
            self._outside = self._profiler = ranges.open_window(self._session / RANGES, self._rank)
            return
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
        try:
            self._profiler = profile(activities=activities, record_shapes=True)
            self._profiler.start()
        except RuntimeError as error:  # the loop's own profiler runs
            self._profiler = None
            _say(self._rank, f"not profiled: {error}")

    def _mark(self, number: int) -> None:
        """Begin the span that a step has in the trace, as torch.profiler calls it."""
        if self._outside is not None:
            self._span = self._outside.span(number)
            return
        from torch.profiler import record_function

        self._span = record_function(f"ProfilerStep#{number}")
        self._span.__enter__()

    def close(self) -> None:
        """End the window and write its trace; a file that is there is whole."""
        if self._profiler is None:
            return
        if self._span is not None:
            self._span.__exit__(None, None, None)
        self._profiler.stop()
        if self._outside is not None:
            self._profiler = self._outside = self._span = None
            return
        profiler, self._profiler, self._span = self._profiler, None, None
        folder = self._session / "traces"
        raw, packed = folder / f".rank{self._rank}.json", folder / f".rank{self._rank}.json.gz"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(raw))
            with raw.open("rb") as trace, gzip.open(packed, "wb", compresslevel=1) as out:
                shutil.copyfileobj(trace, out, 1 << 20)
            packed.replace(folder / f"rank{self._rank}.json.gz")
        except OSError as error:  # a full disk: the steps are marked on
            _say(self._rank, f"its trace is lost: {error}")
        for path in (raw, raw.with_name(f"{raw.name}.tmp"), packed):
            with contextlib.suppress(OSError):
                path.unlink()


def _say(rank: int | None, line: str) -> None:
    """Tell the user what the recording of a rank lacks, in the job's own output."""
    with contextlib.suppress(OSError, ValueError):
        print(f"triplepoint: rank {0 if rank is None else rank}: {line}", file=sys.stderr)


def _this_rank(rank: int, session: Path) -> dict[str, Any]:
    """Return what tells the device of this process, its script, its software and the variables that change them."""
    found: dict[str, Any] = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "device": None}
    found["local_rank"] = local_rank_of()
    group = _process_group()
    told = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1
    found["world_size"] = int(told) if group is None else int(group.get_world_size())
    found["visible"] = next(
        (os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if os.environ.get(name)), None
    )
    modules = {name: sys.modules.get(name) for name in _SOFTWARE}
    found["versions"] = {"python": platform.python_version()} | {
        name.replace(".", "-").replace("_", "-"): str(getattr(module, "__version__", None) or "version not known")
        for name, module in modules.items()
        if module is not None
    }
    torch = modules["torch"]
    found["facts"] = {"script": _script()}
    if torch is not None:
        found["facts"] |= {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    if group is not None:
        found["facts"]["backend"] = str(group.get_backend())
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        found["device"] = int(torch.cuda.current_device())
        if group is not None and group.is_nccl_available():
            found["facts"]["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    try:
        begins = tuple(json.loads((session / SETUP).read_text()).get("variables", ()))
    except (OSError, ValueError):
        begins = ()
    found["variables"] = {name: value for name, value in os.environ.items() if name.startswith(begins)}
    return found


def _script() -> str | None:
    """Return the name of the script that runs, with the beginning of the SHA-256 of what it holds."""
    try:
        path = Path(sys.modules["__main__"].__file__ or "")
        return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    except (AttributeError, KeyError, OSError):
        return None


def install(session: Path) -> None:
    """Mark the steps of this process, whatever framework makes them: called as the interpreter starts."""
    chosen = os.environ.get(STEPS_BY, "auto")
    if chosen == "none":
        return
    marks = Marks(session, None, chosen)
    atexit.register(marks.end)
    watched = {
        "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(
            lambda optimizer, *_: marks.mark("optimizer", id(optimizer))
        ),
        "torch.profiler.profiler": lambda module: _after(module.profile, "step", marks, "profiler"),
        "deepspeed.runtime.engine": lambda module: _after(
            module.DeepSpeedEngine, "_take_model_step", marks, "framework"
        ),
        "megatron.training.training": lambda module: _after(module, "train_step", marks, "framework"),
        "transformers.trainer_callback": lambda module: _after(
            module.CallbackHandler, "on_step_end", marks, "framework"
        ),
    }
    sys.meta_path.insert(0, _AfterImport(watched))


def _after(owner: Any, name: str, marks: Marks, source: str) -> None:
    """Mark a step after every call of a function; one that a framework's version does not have is left out."""
    call = getattr(owner, name, None)
    if call is None:
        return

    def marked(*arguments: Any, **named: Any) -> Any:
        found = call(*arguments, **named)
        # Frameworks nest, as Hugging Face's Trainer and DeepSpeed's engine, and a job may have several engines.
        marks.mark(source, (name, id(arguments[0])) if source == "framework" and arguments else name)
        return found

    setattr(owner, name, marked)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each of some modules once it is imported."""

    def __init__(self, watched: dict[str, Callable[[ModuleType], object]]) -> None:
        self._watched = watched

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        """Return the spec others find, with our function after its execution; None for all other modules."""
        then = self._watched.pop(fullname, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                then(module)
            except Exception as error:  # noqa: BLE001  a framework's inside has changed: the training goes on
                print(f"triplepoint: {fullname}: steps are not marked: {error}", file=sys.stderr)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
