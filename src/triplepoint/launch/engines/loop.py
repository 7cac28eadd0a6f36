"""What every engine does alike in a rank: open the device, join the process group, run the steps, trace them.

CPU traces of torch's profiler do not name the process group of a collective. It is taken from torch's flight recorder.
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
"""Torch's collective backend by `cluster.device`; on ROCm "nccl" is RCCL."""


def open_device(kind: str, local_rank: int) -> torch.device:
    """Make this rank's device the current one and return it.

    Args:
        kind: cpu, cuda or rocm.
        local_rank: Number of the rank on its node, from 0. A launcher may show each rank its own GPU only.

    Raises:
        UserError: If torch sees no GPU.
    """
    if kind == "cpu":
        # Ranks share the cores. Torch's default, all cores for each rank, makes all of them slower.
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
    """Wait until the device has finished all work queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory so far: allocated by torch on a GPU, the resident set of the process on CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB. Source: getrusage(2).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def reserved_memory_bytes(device: torch.device) -> int | None:
    """Return the most GPU memory that torch has reserved so far, its unused parts included; None on CPU."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """Return the model of the GPU or processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return processor()


def run_facts(point: Point) -> dict[str, Any]:
    """Return the facts that the manifest has for every engine."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(COLLECTIVE_SETTINGS))
    return {
        "flops_per_token": model_flops_per_token(point),
        "flops_formula": FORMULAS[point.task],
        "num_parameters_model": point.model.num_parameters,
        "collective_settings": " ".join(settings) or "none: defaults of the library",
        **_library_versions(),
        **memory_facts(),
    }


def memory_facts() -> dict[str, Any]:
    """Return the memory use of this rank so far; also works right after it ran out of memory."""
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


def _library_versions() -> dict[str, Any]:
    """Return the versions of CUDA or ROCm that torch was built with, and of NCCL or RCCL on a GPU."""
    versions: dict[str, Any] = {}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.hip:
        versions["rocm"] = torch.version.hip
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        # RCCL reports itself under the same name, with NCCL's version numbers.
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


FLIGHT_RECORDER_ENTRIES = 20_000
"""Collectives that the flight recorder keeps: more than a profiled step of any layout here has."""

Role = tuple[str, list[int]]
"""Role of a process group, such as "tp", and its global ranks."""

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
"""Size in bytes of torch's C++ scalar types, as the flight recorder names them."""


def marker(name: str) -> AbstractContextManager[object]:
    """Annotate the code inside as a span `name` of the trace. Costs nothing in steps that are not profiled."""
    return record_function(name) if torch.autograd._profiler_enabled() else nullcontext()


def phase(name: str, stage: int, microbatch: int) -> str:
    """Return the span name of a phase of one micro-batch, for `marker`."""
    return f"{name} stage={stage} microbatch={microbatch}"


def join_group(device: str) -> None:
    """Switch the flight recorder on and join the process group of all ranks.

    Args:
        device: cpu, cuda or rocm.
    """
    enable_flight_recorder()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if address != LOOPBACK:
        dist.init_process_group(BACKENDS[device])
        return
    # On one machine the rendezvous is on the loopback address only. Torch's store asks for no password, and listens on
    # all addresses unless it is given a listening socket.
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    listening_fd = socket.create_server((LOOPBACK, port)).detach() if rank == 0 else None
    store = dist.TCPStore(address, port, world_size, rank == 0, master_listen_fd=listening_fd)
    dist.init_process_group(BACKENDS[device], store=store, rank=rank, world_size=world_size)


def enable_flight_recorder() -> None:
    """Switch torch's flight recorder on. Call it before the first process group is created."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDER_ENTRIES))


class Tracer:
    """Runs torch's profiler from the first profiled step to the last, on the ranks in `point.trace_ranks`."""

    def __init__(self, point: Point, context: RankContext, roles: dict[str, Role], device: torch.device) -> None:
        is_traced = point.trace_ranks == "all" or context.rank in point.trace_ranks
        self._is_wanted = is_traced and point.steps.profiled > 0
        self._folder, self._rank = context.raw / "traces", context.rank
        self._roles = roles
        self._activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        self._profiler: Any = None
        self._started_ns = 0

    def start(self) -> None:
        """Start profiling, if this rank is traced and the profiler is not running yet."""
        if self._is_wanted and self._profiler is None:
            # CPU traces have no sizes of collectives: shapes give them.
            self._profiler = profile(activities=self._activities, record_shapes=True)
            self._started_ns = time.time_ns()
            self._profiler.start()

    def finish(self) -> None:
        """Stop profiling and write the trace and the groups. Files appear under their final name when complete."""
        if self._profiler is None:
            return
        self._profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        groups = describe_groups(self._roles, _flight_recorder_entries(), self._started_ns, time.time_ns())
        partial = self._folder / f".rank{self._rank}.groups.json"
        partial.write_text(json.dumps(groups), encoding="utf-8")
        partial.replace(self._folder / f"rank{self._rank}.groups.json")
        self._write_trace(self._folder / f"rank{self._rank}.json.gz")
        self._profiler = None

    def _write_trace(self, target: Path) -> None:
        raw, packed = target.with_name(f".rank{self._rank}.json"), target.with_name(f".rank{self._rank}.json.gz")
        self._profiler.export_chrome_trace(str(raw))
        # torch itself would compress at the highest level, which takes longer than the steps. At level 1 files are a
        # fifth larger.
        with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
            while block := source.read(1 << 20):
                sink.write(block)
        raw.unlink()
        packed.replace(target)


def describe_groups(
    roles: dict[str, Role], entries: list[dict[str, Any]], start_ns: int, end_ns: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the content of `rank<N>.groups.json`: the process groups and the collectives of the profiled steps.

    Args:
        roles: Role and global ranks of each process group, by torch's name for it.
        entries: Entries of the flight recorder.
        start_ns: Wall clock at the start of profiling. Unit: ns.
        end_ns: Wall clock at the end of profiling. Unit: ns.

    Returns:
        `groups`, and `collectives` in the order they were issued.
    """
    groups = [{"role": role, "name": name, "ranks": ranks} for name, (role, ranks) in roles.items()]
    collectives = [
        {
            "role": roles[entry["process_group"][0]][0],
            "op": entry["profiling_name"],
            "seq": entry["collective_seq_id"],
            "t_ns": entry["time_created_ns"],
            "bytes": _num_bytes(entry["input_sizes"], entry["input_dtypes"]),
        }
        for entry in entries
        # The recorder keeps entries of earlier points of this process, whose groups are gone.
        if start_ns <= entry["time_created_ns"] <= end_ns and entry["process_group"][0] in roles
    ]
    return {"groups": groups, "collectives": collectives}


def _flight_recorder_entries() -> list[dict[str, Any]]:
    """Return all collectives that torch's flight recorders hold, in the order they were issued."""
    # torch built with NCCL has a second recorder, for NCCL's collectives.
    library = torch._C._distributed_c10d
    dumps = [getattr(library, name, None) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json")]
    entries = [entry for dump in dumps if dump is not None for entry in json.loads(dump()).get("entries", [])]
    return sorted(entries, key=lambda entry: int(entry["time_created_ns"]))


def _num_bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    return sum(math.prod(size) * _SCALAR_BYTES[dtype] for size, dtype in zip(sizes, dtypes, strict=True))


class Trainer(Protocol):
    """This rank's part of the model, with its optimizer in training."""

    @property
    def world(self) -> dist.ProcessGroup:
        """Process group of all ranks, for barriers."""
        ...

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Run one step on this rank's part of the global batch.

        Args:
            tokens: Shape (num_microbatches * micro_batch_size, sequence).
            targets: Next tokens, of the same shape.

        Returns:
            This rank's part of the loss, for `global_loss`.
        """
        ...

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None on ranks without the last pipeline stage. Unit: nat."""
        ...


def train_steps(
    point: Point, trainer: Trainer, batcher: Batcher, tracer: Tracer, recorder: StepRecorder, device: torch.device
) -> None:
    """Run all steps of the point, in order. Only the training itself is between the recorder's `begin` and `end`."""
    for step, kind in enumerate(point.steps.kinds):
        tokens, targets = batcher.batch(step, device)
        if kind == "profiled":
            tracer.start()
        # Ranks start together: else the step time of a fast rank would include its wait for a slow one.
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
