"""Columns, types, units and bounds of every table, checked when it is written and when it is read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from triplepoint.errors import UserError
from triplepoint.files import whole

_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "names": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class Column:
    """One column: `kind` is a key of `_TYPES`, `unit` is '1' for counts and ratios, '' for text."""

    name: str
    kind: str
    unit: str
    about: str
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class Table:
    """One table: what a row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def schema(self) -> pa.Schema:
        """Return the Arrow schema, with unit and meaning of each column in its metadata."""
        return pa.schema(
            [
                pa.field(c.name, _TYPES[c.kind], c.nullable, metadata={"unit": c.unit, "about": c.about})
                for c in self.columns
            ],
            metadata={"table": self.name, "row": self.row},
        )

    def from_rows(self, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
        """Return rows as a checked Arrow table; a column a row lacks is null."""
        return self.check(pa.Table.from_pylist([dict(row) for row in rows], self.schema()), "rows")

    def check(self, table: pa.Table, where: str | Path) -> pa.Table:
        """Return `table` in this table's column order and types.

        Raises:
            UserError: If a column is missing or unknown, has another type, holds a null it must not, or is out of bounds.
        """
        unknown = sorted(set(table.column_names) - {c.name for c in self.columns})
        missing = sorted({c.name for c in self.columns} - set(table.column_names))
        if unknown or missing:
            raise UserError(f"{where}: table {self.name}: unknown columns {unknown}, missing columns {missing}")
        try:
            cast = table.select([c.name for c in self.columns]).cast(self.schema())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise UserError(f"{where}: table {self.name}: {' '.join(str(error).split())}") from None
        for column in self.columns:
            _check_column(column, cast[column.name], f"{where}: table {self.name}")
        return cast

    def write(self, path: Path, table: pa.Table) -> None:
        """Check `table` and write it to `path` (Parquet, zstd) in one piece."""
        checked = self.check(table, path)
        with whole(path) as scratch:
            pq.write_table(checked, scratch, compression="zstd")

    def read(self, path: Path) -> pa.Table:
        """Return the checked table in `path`.

        Raises:
            UserError: If the file is missing, damaged, or not this table.
        """
        try:
            table = pq.read_table(path)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; the stage that writes table {self.name} has not run") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: not a whole Parquet file ({error}); delete it and run again") from None
        return self.check(table, path)

    def write_csv(self, path: Path, table: pa.Table) -> None:
        """Write `table` to `path` as CSV in one piece; lists of names are joined with semicolons."""
        checked = self.check(table, path)
        for index, column in enumerate(self.columns):
            if column.kind == "names":
                joined = pc.binary_join(checked[column.name], ";")
                checked = checked.set_column(index, column.name, joined)
        with whole(path) as scratch:
            pyarrow.csv.write_csv(checked, scratch)


def _check_column(column: Column, values: pa.ChunkedArray, where: str) -> None:
    if values.null_count and not column.nullable:
        raise UserError(f"{where}: column {column.name} has {values.null_count} nulls, none are allowed")
    if column.minimum is None and column.maximum is None:
        return
    limits = pc.min_max(values).as_py()
    low, high = limits["min"], limits["max"]
    if low is not None and column.minimum is not None and low < column.minimum:
        raise UserError(f"{where}: column {column.name} holds {low}, below its minimum {column.minimum} {column.unit}")
    if high is not None and column.maximum is not None and high > column.maximum:
        raise UserError(f"{where}: column {column.name} holds {high}, above its maximum {column.maximum} {column.unit}")


def _count(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, "int", "1", about, nullable, minimum=0)


def _text(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, "str", "", about, nullable)


def _amount(name: str, unit: str, about: str, nullable: bool = True) -> Column:
    return Column(name, "float", unit, about, nullable, minimum=0.0)


def _ratio(name: str, about: str) -> Column:
    return Column(name, "float", "1", about, nullable=True, minimum=0.0, maximum=1.0)


def _duration(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, "int", "ns", about, nullable, minimum=0)


RUN = _text("run", "Run id, a label.")
RANK = _count("rank", "Global rank.")
STEP = _count("step", "Step number from 0, warm-up included.")

STEPS = Table(
    "steps",
    "one row per (rank, step)",
    (
        RANK,
        STEP,
        _text("kind", "warmup, measured or profiled; times come from measured steps only."),
        _duration("t_start_ns", "Start on the node's monotonic clock."),
        _duration("t_end_ns", "End on the node's monotonic clock, device work finished."),
        Column("loss", "float", "nat", "Mean loss of the global batch; null on ranks without the last stage.", True),
        _count("num_tokens", "Tokens of the global batch."),
        _count("peak_memory_bytes", "Highest memory of the rank so far: allocated on the device, resident on cpu.", True),
    ),
)

_SAMPLE = (
    _duration("t_ns", "Time of the sample on the node's monotonic clock."),
    _duration("read_latency_ns", "Time the reads of this sample took."),
    _text("device", "`host`, or `gpu0`, `gpu1`, ... in the driver's order."),
    _ratio("cpu_utilisation", "Share of all cores busy since the previous sample."),
    _amount("cpu_freq_mhz", "MHz", "Mean current clock of the cores."),
    Column("cpu_temp_c", "float", "degC", "Hottest CPU sensor.", True, -60.0, 150.0),
    _amount("memory_used_bytes", "byte", "Host memory in use."),
    _amount("cpu_energy_j", "J", "CPU package energy since the first sample (RAPL)."),
    _amount("dram_energy_j", "J", "DRAM energy since the first sample (RAPL)."),
    _amount("network_rx_bytes", "byte", "Received by all network interfaces since the first sample."),
    _amount("network_tx_bytes", "byte", "Sent by all network interfaces since the first sample."),
    _amount("gpu_power_w", "W", "GPU power, instantaneous where the driver has it."),
    _amount("gpu_energy_j", "J", "GPU energy counter since the first sample."),
    Column("gpu_temp_c", "float", "degC", "GPU die temperature.", True, -60.0, 150.0),
    Column("gpu_memory_temp_c", "float", "degC", "GPU memory temperature.", True, -60.0, 150.0),
    _amount("sm_clock_mhz", "MHz", "Clock of the compute units."),
    _ratio("gpu_utilisation", "Share of the driver's window with a kernel running."),
    _amount("gpu_memory_used_bytes", "byte", "Device memory in use."),
)

SAMPLES = Table("samples", "one row per (t_ns, device) of one node, as recorded", _SAMPLE)

TELEMETRY = Table(
    "telemetry",
    "one row per (node, t_ns, device)",
    (
        _count("node", "Node index within the run."),
        *_SAMPLE,
        Column("step", "int", "1", "Step the sample falls in; null between steps.", True, 0),
        _text("kind", "Kind of that step: warmup, measured or profiled.", True),
        Column("is_gap", "bool", "1", "Whether more than two periods passed since the device's previous sample."),
    ),
)

KERNELS = Table(
    "kernels",
    "one row per (rank, step, class, kind, group, name)",
    (
        RANK,
        STEP,
        _text("class", "Coarse kernel class: gemm, attention, comm, ..."),
        _text("kind", "Finer kind within the class: all_reduce, forward, ..."),
        _text("group", "Process group of a collective (tp, pp, dp, ep); null otherwise or where not known.", True),
        _text("name", "Name in the trace."),
        _count("count", "Occurrences."),
        _duration("sum_ns", "Summed duration; concurrent kernels count twice."),
        _duration("min_ns", "Shortest."),
        _duration("max_ns", "Longest."),
    ),
)

INTERVALS = Table(
    "intervals",
    "one row per (rank, step, phase, category); compute busy + comm exposed + memory exposed + idle busy = the phase",
    (
        RANK,
        STEP,
        _text("phase", "forward, backward, optimizer or other."),
        _text("category", "compute, comm, memory or idle."),
        _duration("busy_ns", "Time the category was running (union of its intervals); for idle, nothing was."),
        _duration("exposed_ns", "Part of it while no category before it (compute, comm, memory) was running."),
        _duration("overlapped_ns", "The rest: busy - exposed."),
    ),
)

TIMELINE = Table(
    "timeline",
    "one row per drawn span of the first profiled step",
    (
        RANK,
        _text("lane", "phase (what the rank was told to do) or comm (communication in flight)."),
        _text("label", "forward, backward, optimizer, or the kind of communication."),
        _text("group", "Process group of communication; null otherwise or where not known.", True),
        Column("stage", "int", "1", "Pipeline stage of a phase.", True, 0),
        Column("microbatch", "int", "1", "Micro-batch of a phase.", True, 0),
        _duration("t_start_ns", "Start since the step began on the earliest rank."),
        _duration("duration_ns", "Duration."),
    ),
)

_POINT = (
    RUN,
    Column("studies", "names", "", "Studies the run belongs to."),
    _text("status", "ok, oom, invalid, timeout or crashed."),
    _text("reason", "Why not ok; null when ok.", True),
    _text("origin", "measured or simulated."),
    _text("engine", "What trained."),
    _text("model", "Model name."),
    _text("cluster", "Cluster name."),
    _text("gpu", "GPU type; null on cpu.", True),
    _count("num_gpus", "World size; on cpu, processes."),
    *(_count(degree, f"Degree {degree}.") for degree in ("tp", "pp", "dp", "cp", "ep", "vp")),
    Column("sequence_parallel", "bool", "1", "Whether sequence parallelism is on."),
    _text("data_parallel_sharding", "What data parallel ranks share out."),
    _text("schedule", "Pipeline schedule; null without a pipeline.", True),
    _count("micro_batch_size", "Sequences per micro-batch."),
    _count("global_batch_size", "Sequences per step."),
    _count("num_microbatches", "Micro-batches per rank and step."),
    _count("sequence_length", "Tokens per sequence."),
    _text("recompute", "Activation recomputation."),
    Column("overlap", "names", "", "Communication overlapped with computation."),
    _text("precision", "Number format."),
    _count("repeat", "Repeat of the same measurement, from 1."),
)

POINTS = Table(
    "points",
    "one row per run, invalid points included",
    (
        *_POINT,
        _count("num_measured_steps", "Measured steps behind the figures.", True),
        _amount("step_time_s", "s", "Median over measured steps of the slowest rank's step."),
        _amount("step_time_p10_s", "s", "10th percentile over measured steps."),
        _amount("step_time_p90_s", "s", "90th percentile over measured steps."),
        _amount("tokens_per_s", "token/s", "Tokens of the global batch over the median step time."),
        _amount("tokens_per_s_per_gpu", "token/s", "The same per rank."),
        _amount("flops_per_token", "FLOP/token", "Model FLOPs, forward and backward, no recomputation."),
        _ratio("mfu", "Model FLOP/s utilisation against the dense peak of the GPU; null on cpu."),
        Column("loss_first", "float", "nat", "Loss of the first step.", True),
        Column("loss_last", "float", "nat", "Loss of the last step.", True),
        _amount("peak_memory_bytes", "byte", "Highest over ranks."),
        _amount("gpu_power_w", "W", "Mean power summed over GPUs, measured steps; null where not measured."),
        _amount("gpu_power_p10_w", "W", "10th percentile over measured steps."),
        _amount("gpu_power_p90_w", "W", "90th percentile over measured steps."),
        _amount("gpu_energy_per_token_j", "J/token", "GPU energy per token; null where not measured."),
        _amount("gpu_samples_per_s_mj", "sample/(s*MJ)", "Efficiency of the reference study, on GPU energy."),
        _amount("node_power_w", "W", "Mean CPU package and DRAM power of all nodes (RAPL); null where not measured."),
        _amount("node_power_p10_w", "W", "10th percentile over measured steps."),
        _amount("node_power_p90_w", "W", "90th percentile over measured steps."),
        _amount("node_energy_per_token_j", "J/token", "The same per token; null where not measured."),
        _text("power_absent", "Why power (GPU power; node power on cpu) was not measured; null where it was.", True),
        _ratio("cpu_utilisation", "Mean host CPU utilisation over measured steps."),
        _ratio("cpu_utilisation_p10", "10th percentile over samples."),
        _ratio("cpu_utilisation_p90", "90th percentile over samples."),
        _ratio("gpu_utilisation", "Mean over GPUs of the share of time with a kernel running, measured steps."),
        _ratio("gpu_utilisation_p10", "10th percentile over samples."),
        _ratio("gpu_utilisation_p90", "90th percentile over samples."),
        _amount("compute_s", "s", "Computation per profiled step, mean over traced ranks; null where not traced."),
        _amount("exposed_comm_s", "s", "Communication of a profiled step while no computation ran on that rank."),
        _amount("exposed_memory_s", "s", "Copies of a profiled step while nothing else ran on that rank."),
        _amount("idle_s", "s", "Time of a profiled step with nothing running on that rank."),
        _amount("kernel_sum_s", "s", "Summed kernel durations per profiled step, mean over traced ranks."),
        _amount("kernel_sum_min_s", "s", "Lowest rank."),
        _amount("kernel_sum_max_s", "s", "Highest rank."),
        _text("host", "Hosts, comma separated; null if nothing ran.", True),
        _text("git_commit", "Commit of the project that measured; null if unknown.", True),
        _text("torch_version", "Version of torch; null if nothing ran.", True),
    ),
)

GPUS = Table(
    "gpus",
    "one row per (run, rank) of runs that finished",
    (
        RUN,
        RANK,
        _text("host", "Host of the rank."),
        _text("device", "Device of the rank: cpu, or gpu0, gpu1, ... on its host."),
        Column("slot", "int", "1", "Physical slot of the device, where known.", True, 0),
        _text("uuid", "Identity of the device, where it has one.", True),
        _amount("step_time_s", "s", "Median over measured steps.", False),
        _amount("step_time_p10_s", "s", "10th percentile over measured steps.", False),
        _amount("step_time_p90_s", "s", "90th percentile over measured steps.", False),
        _amount("peak_memory_bytes", "byte", "Highest memory."),
        _amount("gpu_power_w", "W", "Mean power over measured steps; null where not measured."),
        _amount("gpu_temp_c", "degC", "Mean temperature over measured steps; null where not measured."),
    ),
)

PHASES = Table(
    "phases",
    "one row per (run, rank, phase, category): mean over profiled steps",
    (
        RUN,
        RANK,
        _text("phase", "forward, backward, optimizer or other."),
        _text("category", "compute, comm, memory or idle."),
        _amount("busy_s", "s", "Time running.", False),
        _amount("exposed_s", "s", "Part of it with no earlier category running.", False),
        _amount("overlapped_s", "s", "The rest.", False),
    ),
)

KERNEL_TOTALS = Table(
    "kernels",
    "one row per (run, class, kind, group): per profiled step, over the traced ranks of the run",
    (
        RUN,
        _text("class", "Coarse kernel class."),
        _text("kind", "Finer kind."),
        _text("group", "Process group of a collective.", True),
        _count("num_ranks", "Traced ranks."),
        _amount("count_per_rank", "1", "Occurrences per rank and step.", False),
        _amount("sum_s", "s", "Mean over ranks of the summed duration of one step.", False),
        _amount("sum_min_s", "s", "Lowest rank.", False),
        _amount("sum_max_s", "s", "Highest rank.", False),
    ),
)

RUN_TIMELINE = Table("timeline", "one row per (run, drawn span)", (RUN, *TIMELINE.columns))
