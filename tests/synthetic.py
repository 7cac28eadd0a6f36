"""Writes a complete results folder with made-up but plausible numbers, without training, for all outcomes of runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from triplepoint.config.model import ModelConfig
from triplepoint.config.plan import Limits, Plan, PlanEntry, PlannedRun
from triplepoint.config.point import Layout, Point, PointCluster, Steps
from triplepoint.config.rules import engine_revision
from triplepoint.config.yaml_file import read
from triplepoint.files import write_text
from triplepoint.manifest import Device, Evidence, Manifest, Node, Telemetry, write_manifest
from triplepoint.tables import CATEGORIES, INTERVALS, KERNELS, STEPS, TELEMETRY, TIMELINE
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.studies import OVER_ALL, read_joined
from triplepoint.units import NS_PER_S

CONFIG = Path(__file__).parents[1] / "config"
MS = 1_000_000
PEAK_OF_MODEL_W = 540.0
"""Highest power that made-up simulated runs state. Their samples reach 535 W. Unit: W."""
NO_RAPL = "no /sys/class/powercap/intel-rapl on this host"
CPU = PointCluster(name="cpu-local", device="cpu", gpu=None, gpus_per_node=8)
H200 = PointCluster(name="h200x32", device="cuda", gpu="h200", gpus_per_node=8)


@dataclass(frozen=True)
class Spec:
    """A point and the outcome of its run.

    Attributes:
        model: Name of the model.
        layout: Fields of the layout.
        micro_batch_size: Micro-batch size.
        status: Status of the run.
        recompute: Recomputation.
        overlap: Overlapped communication.
        repeat: Number of the repetition.
        cluster: Cluster.
        step_ms: Nominal step time. Unit: ms.
        engine: Engine.
        extra: Other fields of the point.
    """

    model: str
    layout: dict[str, Any]
    micro_batch_size: int = 1
    status: str = "ok"
    recompute: str = "none"
    overlap: tuple[str, ...] = ()
    repeat: int = 1
    cluster: PointCluster = CPU
    step_ms: float = 200.0
    engine: str = "native"
    extra: dict[str, Any] = field(default_factory=dict)

    def point(self) -> Point:
        layout = Layout(**self.layout)
        is_cpu = self.cluster.device == "cpu"
        point = Point(
            model=model_of(self.model),
            cluster=self.cluster,
            engine=self.engine,
            num_gpus=layout.tp * layout.pp * layout.dp * layout.cp,
            layout=layout,
            micro_batch_size=self.micro_batch_size,
            global_batch_size=16 if is_cpu else 128,
            sequence_length=128 if is_cpu else model_of(self.model).sequence_length,
            recompute=self.recompute,
            overlap=self.overlap,
            precision="fp32" if is_cpu else "bf16",
            steps=Steps(warmup=1, measured=5, profiled=1),
            repeat=self.repeat,
            **self.extra,
        )
        return point.model_copy(update={"engine_revision": engine_revision(point)})

    @property
    def run(self) -> str:
        degrees = "-".join(
            f"{k}{v}" for k, v in self.layout.items() if isinstance(v, int) and k in ("tp", "pp", "dp", "ep")
        )
        name = f"{self.model}_{self.cluster.name}_{degrees}_mbs{self.micro_batch_size}_{self.recompute}"
        sharding = "-fsdp" if self.layout.get("data_parallel_sharding") == "optim_grads_params" else ""
        overlap = "-".join(("", *self.overlap))
        return f"{name}{sharding}{overlap}_{self.engine}_r{self.repeat}"


def model_of(name: str) -> ModelConfig:
    return read(ModelConfig, CONFIG / "models" / f"{name}.yaml")


def build(folder: Path, specs: Iterable[Spec], studies: tuple[str, ...] = ("synthetic",)) -> Plan:
    """Write `runs/` and `plan.json` into a folder; return the plan."""
    entries = []
    for spec in specs:
        point = spec.point()
        limits = Limits(executor="local", time_limit_s=600, hang_timeout_s=60)
        planned = PlannedRun(run=spec.run, digest=point.digest(), point=point, limits=limits)
        reason = "80 layers do not divide into 32 pipeline stages" if spec.status == "invalid" else None
        entries.append(PlanEntry(run=spec.run, studies=studies, invalid_because=reason, planned=planned))
        if spec.status != "invalid":
            write_run(folder / "runs" / spec.run, spec, planned)
    plan = Plan(entries=tuple(entries))
    write_text(folder / "plan.json", plan.model_dump_json())
    return plan


def write_run(folder: Path, spec: Spec, planned: PlannedRun) -> None:
    write_manifest(folder / "raw" / "manifest.json", manifest_of(spec, planned))
    write_text(folder / "point.json", planned.model_dump_json())
    if spec.status != "ok":
        return
    point = planned.point
    tables = {
        "raw/steps": (STEPS, steps_of(spec, point)),
        "telemetry": (TELEMETRY, telemetry_of(spec, point)),
        "categories": (CATEGORIES, categories_of(spec, point)),
        "intervals": (INTERVALS, intervals_of(spec, point)),
        "kernels": (KERNELS, kernels_of(spec, point)),
        "timeline": (TIMELINE, timeline_of(spec, point)),
    }
    for name, (table, rows) in tables.items():
        table.write(folder / f"{name}.parquet", table.from_rows(rows))


def manifest_of(spec: Spec, planned: PlannedRun) -> Manifest:
    point = planned.point
    evidence = None
    if spec.status != "ok":
        message = (
            "CUDA out of memory. Tried to allocate 2.25 GiB"
            if spec.status == "oom"
            else "RuntimeError: connection lost"
        )
        evidence = Evidence(rank=3, host="node0", message=message, log_tail=("Traceback", message))
    return Manifest(
        run=planned.run, digest=planned.digest, status=spec.status, evidence=evidence,
        origin="simulated" if spec.engine == "simulated" else "measured", engine=spec.engine,
        versions={"python": "3.11.2", "triplepoint": "0.1.0"}
        | ({} if spec.engine == "simulated" else {"torch": "2.13.0"}),
        git_commit="7a8460e5aa3f4b97f20e6024b9a2d13f8c807296", git_dirty=False, seed=1234,
        started_at="2026-01-01T00:00:00+00:00", ended_at="2026-01-01T00:01:00+00:00", duration_s=60.0,
        nodes=tuple(node_of(spec, point, node) for node in range(point.num_nodes)),
        facts={"num_parameters": 123456, "backend": "gloo"}
        | ({"gpu_power_peak_w": PEAK_OF_MODEL_W, "stack": "NeMo b70681c"} if spec.engine == "simulated" else {}),
    )  # fmt: skip


def node_of(spec: Spec, point: Point, node: int) -> Node:
    size = point.cluster.gpus_per_node
    ranks = range(node * size, min(point.num_gpus, (node + 1) * size))
    is_cpu = point.cluster.device == "cpu"
    absent = {"cpu_energy_j": NO_RAPL} | ({"gpu_power_w": "this run used no GPU"} if is_cpu else {})
    devices = tuple(
        Device(rank=rank, device="cpu", product="Xeon 8481C")
        if is_cpu
        else Device(
            rank=rank, device=f"gpu{rank % size}", product="NVIDIA H200", uuid=f"GPU-{rank:04d}", slot=rank % size
        )
        for rank in ranks
    )
    measured = ("cpu_utilisation",) if is_cpu else ("cpu_utilisation", "gpu_power_w", "gpu_temp_c", "sm_clock_mhz")
    return Node(
        node=node, host=f"node{node}", monotonic_ns=1_000_000 * (node + 1), wall_ns=1_700_000_000_000_000_000,
        num_cores=2 if is_cpu else 192, memory_bytes=8 << 30, devices=devices,
        telemetry=Telemetry(period_s=0.1, num_samples=40, measured=measured, absent=absent),
    )  # fmt: skip


KINDS = ["warmup"] + ["measured"] * 5 + ["profiled"]
JITTER = [1.6, 1.0, 1.04, 0.98, 1.1, 1.01, 1.3]
"""Duration of each step over the nominal step time."""


def step_window_ns(spec: Spec, step: int) -> tuple[int, int]:
    start = sum(JITTER[:step]) * spec.step_ms * MS + 50 * MS
    return int(start), int(start + JITTER[step] * spec.step_ms * MS)


def steps_of(spec: Spec, point: Point) -> Iterable[dict[str, Any]]:
    for rank in reversed(range(point.num_gpus)):
        for step, kind in enumerate(KINDS):
            start, end = step_window_ns(spec, step)
            yield {
                "rank": rank, "step": step, "kind": kind, "t_start_ns": start + rank * 1000, "t_end_ns": end,
                "loss": 5.5 - 0.1 * step if rank >= point.num_gpus - point.num_gpus // point.layout.pp else None,
                "num_tokens": point.global_batch_size * point.sequence_length, "peak_memory_bytes": (1 << 30) + rank,
            }  # fmt: skip


def telemetry_of(spec: Spec, point: Point) -> Iterable[dict[str, Any]]:
    for node in range(point.num_nodes):
        names = ["host"] + [d.device for d in node_of(spec, point, node).devices if d.device != "cpu"]
        for step, kind in enumerate(KINDS):
            start, end = step_window_ns(spec, step)
            for share in (0.3, 0.7):
                for index, name in enumerate(names):
                    row = {
                        "node": node,
                        "t_ns": int(start + share * (end - start)),
                        "read_latency_ns": 100,
                        "device": name,
                    }
                    row |= {"step": step, "kind": kind, "is_gap": False}
                    if name == "host":
                        row["cpu_utilisation"] = 0.9 if point.cluster.device == "cpu" else 0.05
                    else:
                        busy = min(0.98, 0.6 + 0.1 * point.micro_batch_size)
                        row |= {"gpu_power_w": 700 * busy - 5 * index + 10 * step, "gpu_utilisation": busy}
                        row |= {"gpu_temp_c": 50.0 + 2 * index, "sm_clock_mhz": 1980.0 - 15 * index}
                        # For a tenth of the time, heat throttles GPU 3 of node 0, and the power limit all others.
                        cause = "gpu_sw_thermal_s" if (node, name) == (0, "gpu3") else "gpu_power_cap_s"
                        throttled_s = {"gpu_power_cap_s": 0.0, "gpu_sw_thermal_s": 0.0, "gpu_hw_thermal_s": 0.0}
                        row |= throttled_s | {cause: 0.1 * row["t_ns"] / NS_PER_S}
                    yield row


def categories_of(spec: Spec, point: Point) -> Iterable[dict[str, Any]]:
    total = spec.step_ms * 1.3 * MS
    shares = {"forward": 0.33, "backward": 0.55, "optimizer": 0.08, "other": 0.04}
    comm = 0.05 + 0.03 * point.layout.tp + 0.01 * point.layout.dp
    for rank in range(point.num_gpus):
        idle = 0.04 + 0.01 * point.layout.pp + 0.002 * rank
        for phase, share in shares.items():
            parts = {"comm": min(comm, 0.5), "memory": 0.02, "idle": min(idle, 0.3)}
            parts["compute"] = 1 - sum(parts.values())
            for category, part in parts.items():
                exposed_ns = int(total * share * part)
                overlapped_ns = exposed_ns // 4 if category == "comm" else 0
                yield {
                    "rank": rank, "step": 6, "phase": phase, "category": category,
                    "busy_ns": exposed_ns + overlapped_ns, "exposed_ns": exposed_ns, "overlapped_ns": overlapped_ns,
                }  # fmt: skip


def intervals_of(spec: Spec, point: Point) -> Iterable[dict[str, Any]]:
    """Yield the categories by kind. Computation is two thirds GEMM and one third attention; others have one kind."""
    kinds = {"comm": ("all_gather", "tp"), "memory": ("dtod", None), "idle": ("other", None)}
    for row in categories_of(spec, point):
        if row["category"] != "compute":
            kind, group = kinds[row["category"]]
            yield row | {"kind": kind, "group": group}
            continue
        gemm_ns = row["busy_ns"] * 2 // 3
        for kind, time_ns in (("gemm", gemm_ns), ("attention", row["busy_ns"] - gemm_ns)):
            yield row | {"kind": kind, "group": None, "busy_ns": time_ns, "exposed_ns": time_ns}


def kernels_of(spec: Spec, point: Point) -> Iterable[dict[str, Any]]:
    layout = point.layout
    shares = [
        ("gemm", "dense", None, 0.42), ("attention", "forward", None, 0.06), ("attention", "backward", None, 0.1),
        ("norm", "rmsnorm", None, 0.05), ("elementwise", "elementwise", None, 0.08), ("optimizer", "adam", None, 0.05),
        ("memory", "copy", None, 0.03), ("loss", "cross_entropy", None, 0.01), ("embedding", "embedding", None, 0.01),
    ]  # fmt: skip
    shares += [("comm", kind, "tp", 0.03 * layout.tp) for kind in ("all_gather", "reduce_scatter") if layout.tp > 1]
    shares += [("comm", "all_reduce", "dp", 0.02 * layout.dp)] if layout.dp > 1 else []
    shares += [("comm", "send_recv", "pp", 0.008 * layout.pp)] if layout.pp > 1 else []
    shares += [("comm", "all_to_all", "ep", 0.02 * layout.ep)] if layout.ep > 1 else []
    for rank in range(point.num_gpus):
        for kernel_class, kind, group, share in shares:
            time_ns = int(spec.step_ms * MS * share * (1 + 0.01 * rank))
            for name in ("first", "second"):
                yield {
                    "rank": rank, "step": 6, "class": kernel_class, "kind": kind, "group": group, "name": name,
                    "count": 10, "sum_ns": time_ns // 2, "min_ns": 1, "max_ns": time_ns // 4,
                }  # fmt: skip
        # This kernel started between steps, so it is in no figure.
        yield {
            "rank": rank, "step": None, "class": "gemm", "kind": "dense", "group": None, "name": "first",
            "count": 1, "sum_ns": 7 * MS, "min_ns": 7 * MS, "max_ns": 7 * MS,
        }  # fmt: skip


def timeline_of(spec: Spec, point: Point) -> Iterable[dict[str, Any]]:
    """Yield a pattern that looks like a 1F1B schedule, but is not one."""
    layout, count = point.layout, min(point.num_microbatches, 16)
    slot_ns = int(spec.step_ms * MS / (3 * (count + layout.pp)))
    per_stage = point.num_gpus // layout.pp
    for rank in range(point.num_gpus):
        stage = rank // per_stage
        spans = [(stage + i, 1, "forward", i) for i in range(count)]
        spans += [(count + layout.pp + 2 * i + 2 * (layout.pp - 1 - stage), 2, "backward", i) for i in range(count)]
        for start, length, label, microbatch in spans:
            yield {
                "rank": rank, "lane": "phase", "label": label, "group": None, "stage": stage,
                "microbatch": microbatch, "t_start_ns": start * slot_ns, "duration_ns": int(length * slot_ns * 0.95),
            }  # fmt: skip
            if layout.tp > 1 or layout.pp > 1:
                kind, group = ("all_gather", "tp") if layout.tp > 1 else ("send_recv", "pp")
                yield {
                    "rank": rank, "lane": "comm", "label": kind, "group": group,
                    "t_start_ns": start * slot_ns + slot_ns // 2, "duration_ns": slot_ns // 2,
                }  # fmt: skip
        end_ns = (3 * count + 3 * layout.pp) * slot_ns
        yield {"rank": rank, "lane": "phase", "label": "optimizer", "t_start_ns": end_ns, "duration_ns": slot_ns}
        if layout.dp > 1:
            row = {"rank": rank, "lane": "comm", "label": "all_reduce", "group": "dp"}
            yield row | {"t_start_ns": end_ns - 2 * slot_ns, "duration_ns": 2 * slot_ns}


def read_tables(folder: Path, study: str = "synthetic") -> dict[str, pa.Table]:
    """Return the tables of an aggregated study, by name."""
    names = [name for name in RESULT_TABLES if name not in OVER_ALL]
    return {name: read_joined(folder, [study], name) for name in names}
