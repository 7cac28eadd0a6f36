"""The device a rank computes on, the facts every run reports, and the steps of a run with their Kineto traces.

Every engine makes the same steps: batch, barrier, step, record. CPU traces do not say the group of a collective, so it
is taken from torch's flight recorder, which does.
"""

import gzip
import json
import math
import os
import platform
import resource
import socket
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.flops import FORMULAS, model_flops_per_token
from triplepoint.launch.engines import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher
from triplepoint.provenance import COLLECTIVE_SETTINGS, processor
from triplepoint.units import KIB

LOOPBACK = "127.0.0.1"
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "rocm": "nccl"}
"""Collective library by `cluster.device`; on ROCm torch's nccl is RCCL."""


def open_device(kind: str, local_rank: int) -> torch.device:
    """Return this rank's device, made the current one.

    Args:
        kind: cpu, cuda or rocm.
        local_rank: Place of the rank on its node. A launcher may show each rank its own GPU only.

    Raises:
        UserError: If torch sees no GPU.
    """
    if kind == "cpu":
        # Several ranks share the cores: torch's default, all cores for each of them, makes every rank slower.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return torch.device("cpu")
    if not (num_gpus := torch.cuda.device_count()):
        raise UserError(
            f"{platform.node()}: torch {torch.__version__} sees no GPU, and the cluster's device is {kind}; install "
            "envs/launch-cuda.txt or envs/launch-rocm.txt where there are GPUs, else add the cluster to 'simulated' "
            "in config/config.yaml"
        )
    device = torch.device("cuda", local_rank % num_gpus)
    torch.cuda.set_device(device)
    return device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the highest memory so far: what torch allocated on a GPU, the resident set on CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB. Source: getrusage(2).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def reserved_memory_bytes(device: torch.device) -> int | None:
    """Return the highest memory so far that torch held of a GPU, free parts included; None on CPU."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """Return the model of the GPU or processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return processor()


def run_facts(point: Point) -> dict[str, Any]:
    """Return facts of a run that every engine has."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(COLLECTIVE_SETTINGS))
    return {
        "flops_per_token": model_flops_per_token(point),
        "flops_formula": FORMULAS[point.task],
        "num_parameters_model": point.model.num_parameters,
        "collective_settings": " ".join(settings) or "none: defaults of the library",
        **_libraries(),
        **memory_facts(),
    }


def memory_facts() -> dict[str, Any]:
    """Return what this rank has had of memory so far; also of one that has just run out of it."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    facts: dict[str, Any] = {
        "peak_memory_bytes": peak_memory_bytes(device),
        "reserved_memory_bytes": reserved_memory_bytes(device),
    }
    if on_gpu:
        free, total = torch.cuda.mem_get_info(device)
        facts |= {"device_memory_bytes": total, "device_free_bytes": free}
    return facts


def _libraries() -> dict[str, Any]:
    """Return versions of what torch was built with, and of the collective library where there is one."""
    found: dict[str, Any] = {}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.version.hip:
        found["rocm"] = torch.version.hip
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        # RCCL keeps the name and the numbers.
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


FLIGHT_RECORDER_ENTRIES = 20_000
"""Collectives the flight recorder remembers; more than a profiled step of any layout here makes."""

Role = tuple[str, list[int]]


_SCALAR_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
}
"""Bytes of torch's C++ scalar types, as the flight recorder names them."""


def marker(name: str) -> AbstractContextManager[object]:
    """Return a context that is a span of that name in a trace, and costs nothing in a step that is not profiled."""
    return record_function(name) if torch.autograd._profiler_enabled() else nullcontext()


def phase(name: str, stage: int, microbatch: int) -> str:
    """Return the annotation of a phase."""
    return f"{name} stage={stage} microbatch={microbatch}"


def join_group(device: str) -> None:
    """Join the process group of all ranks, with the flight recorder on.

    Ranks on one machine meet at its loopback address. The store of torch, which asks for no password, listens on all
    addresses unless it is given a socket.

    Args:
        device: cpu, cuda or rocm.
    """
    enable_flight_recorder()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if address != LOOPBACK:
        dist.init_process_group(BACKENDS[device])
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    listening = socket.create_server((LOOPBACK, port)).detach() if rank == 0 else None
    store = dist.TCPStore(address, port, world_size, rank == 0, master_listen_fd=listening)
    dist.init_process_group(BACKENDS[device], store=store, rank=rank, world_size=world_size)


def enable_flight_recorder() -> None:
    """Switch the flight recorder on; to be called before the first process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDER_ENTRIES))


class Tracer:
    """Profiles from the first profiled step to the last one, on the ranks that are asked for."""

    def __init__(self, point: Point, context: RankContext, roles: dict[str, Role], device: torch.device) -> None:
        is_traced = point.trace_ranks == "all" or context.rank in point.trace_ranks
        self._is_wanted = is_traced and point.steps.profiled > 0
        self._folder, self._rank = context.raw / "traces", context.rank
        self._roles = roles
        self._activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        self._profiler: Any = None
        self._started_ns = 0

    def start(self) -> None:
        """Start profiling, if it is wanted and not running yet."""
        if self._is_wanted and self._profiler is None:
            # Shapes give the size of collectives on CPU, where the trace has no bytes.
            self._profiler = profile(activities=self._activities, record_shapes=True)
            self._started_ns = time.time_ns()
            self._profiler.start()

    def finish(self) -> None:
        """Stop profiling and write the files; a file that is present is whole."""
        if self._profiler is None:
            return
        self._profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        groups = describe_groups(self._roles, _flight_record(), self._started_ns, time.time_ns())
        partial = self._folder / f".rank{self._rank}.groups.json"
        partial.write_text(json.dumps(groups), encoding="utf-8")
        partial.replace(self._folder / f"rank{self._rank}.groups.json")
        self._write_trace(self._folder / f"rank{self._rank}.json.gz")
        self._profiler = None

    def _write_trace(self, target: Path) -> None:
        raw, packed = target.with_name(f".rank{self._rank}.json"), target.with_name(f".rank{self._rank}.json.gz")
        self._profiler.export_chrome_trace(str(raw))
        # torch packs at the highest level, which takes longer than the steps; level 1 is a fifth larger.
        with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
            while block := source.read(1 << 20):
                sink.write(block)
        raw.unlink()
        packed.replace(target)


def describe_groups(
    roles: dict[str, Role], entries: list[dict[str, Any]], start_ns: int, end_ns: int
) -> dict[str, list[dict[str, Any]]]:
    """Return what `rank<N>.groups.json` holds.

    Args:
        roles: Role and global ranks of each process group, by torch's name of it.
        entries: Flight recorder entries.
        start_ns: Wall clock at the start of profiling. Unit: ns.
        end_ns: Wall clock at its end. Unit: ns.

    Returns:
        `groups`, and `collectives` in the order of their creation.
    """
    groups = [{"role": role, "name": name, "ranks": ranks} for name, (role, ranks) in roles.items()]
    collectives = [
        {
            "role": roles[entry["process_group"][0]][0],
            "op": entry["profiling_name"],
            "seq": entry["collective_seq_id"],
            "t_ns": entry["time_created_ns"],
            "bytes": _bytes(entry["input_sizes"], entry["input_dtypes"]),
        }
        for entry in entries
        # The recorder outlives a mesh: entries of groups made before this one are not ours.
        if start_ns <= entry["time_created_ns"] <= end_ns and entry["process_group"][0] in roles
    ]
    return {"groups": groups, "collectives": collectives}


def _flight_record() -> list[dict[str, Any]]:
    # Builds with NCCL keep its collectives in a recorder of its own.
    library = torch._C._distributed_c10d
    dumps = [getattr(library, name, None) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json")]
    entries = [entry for dump in dumps if dump is not None for entry in json.loads(dump()).get("entries", [])]
    return sorted(entries, key=lambda entry: int(entry["time_created_ns"]))


def _bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    return sum(math.prod(size) * _SCALAR_BYTES[dtype] for size, dtype in zip(sizes, dtypes, strict=True))


class Trainer(Protocol):
    """A rank's part of the model with its optimizer."""

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks, for barriers."""
        ...

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch and return its part of the mean loss."""
        ...

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None where another rank knows it. Unit: nat."""
        ...


def train_steps(
    point: Point, trainer: Trainer, batcher: Batcher, tracer: Tracer, recorder: StepRecorder, device: torch.device
) -> None:
    """Make all steps of the point, in order; only the training itself lies between `begin` and `end`."""
    for step, kind in enumerate(point.steps.kinds):
        tokens, targets = batcher.batch(step, device)
        if kind == "profiled":
            tracer.start()
        # Ranks start together, or the time of a fast one would hold its wait for a slow one.
        dist.barrier(group=trainer.world, device_ids=None if device.index is None else [device.index])
        synchronise(device)
        recorder.begin(step, kind)
        with marker(f"ProfilerStep#{step}"):
            part = trainer.step(tokens, targets)
            synchronise(device)
        recorder.end()
        loss = trainer.global_loss(part)
        recorder.write(loss, point.num_tokens, peak_memory_bytes(device), reserved_memory_bytes(device))
    tracer.finish()
