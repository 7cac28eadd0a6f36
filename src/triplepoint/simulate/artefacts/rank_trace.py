"""Trace of one rank: kernels, communication, and annotations of the host.

The host runs ahead of the device. From the middle of a pass on, it launches the next pass at twice the pace of the
device, so that no work is late because of it; its calls have no length. As with NCCL, a communication kernel starts
when its rank reaches it and ends when the data has arrived: a rank that waits for another sits in a receive or a
collective.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from triplepoint.config.gpu import GpuConfig
from triplepoint.simulate.artefacts.groups import ProcessGroup, split_sync
from triplepoint.simulate.artefacts.kineto import EPOCH_NS, FIRST_NUMBER, KernelText, Template, annotation
from triplepoint.simulate.artefacts.simulated import Simulated, ns, one_ns
from triplepoint.simulate.operations import CommKind, Communication, Kernel, Operation
from triplepoint.simulate.timeline.expand import MAIN, Runs, lay_out, spread, wait_for_slowest
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, TASK_NAMES, Int64

_MAIN_STREAM = 7
"""Stream of the kernels: the number of torch's default stream in traces."""

_NORM_BYTES = 4
"""Size of the squared gradient norm of a stage, one fp32 number; too small to count as traffic. Unit: byte."""

Streams = dict[str, int]


class RankTrace:
    """Writes the events of one rank."""

    def __init__(self, simulated: Simulated, rank: int, groups: dict[str, ProcessGroup]) -> None:
        """Prepare the trace.

        Args:
            simulated: The step.
            rank: The rank.
            groups: Its process groups by name.
        """
        self._simulated = simulated
        self._groups = groups
        self._stage, self._which = stage, which = simulated.place(rank)
        self._pace, self._is_uneven = simulated.pace(rank), simulated.waits_in_passes(rank)
        timeline = simulated.timeline
        self._start = ns(timeline.start[stage, :, which])
        self._end = ns(timeline.end[stage, :, which])
        self._middle = (self._start + self._end) // 2
        self._streams: Streams = {MAIN: _MAIN_STREAM}
        self._number = FIRST_NUMBER
        self._events: list[bytes | memoryview] = []

    def events(self, steps: Iterable[int], starts_ns: Int64 | None = None) -> list[bytes | memoryview]:
        """Return the events of some steps.

        Args:
            steps: Numbers of the steps.
            starts_ns: Start of every step of the run; None: one after the other from 0. Unit: ns.
        """
        length = one_ns(self._simulated.timeline.step_time_s)
        for step in steps:
            begin = EPOCH_NS + (step * length if starts_ns is None else int(starts_ns[step]))
            self._events.append(annotation(f"ProfilerStep#{step}", begin, begin + length))
            self._add_tasks(begin)
            self._add_sends(begin)
            self._add_gradients(begin)
            self._add_optimizer(begin)
        return self._events

    def _add_tasks(self, begin: int) -> None:
        order = self._simulated.timeline.order
        kinds, chunks = order.kind[self._stage], order.chunk[self._stage]
        host = np.concatenate(([0], self._middle[:-1])) if order.num_tasks else self._middle
        for kind, chunk in sorted(set(zip(kinds.tolist(), chunks.tolist(), strict=True))):
            places = np.flatnonzero((kinds == kind) & (chunks == chunk))
            last = places[places == order.num_tasks - 1]
            places = places[: len(places) - len(last)]
            self._add(self._pass_template(kind, chunk), begin + self._start[places], begin + host[places])
            more = one_ns(self._simulated.timeline.contention_s)
            self._add(self._pass_template(kind, chunk, more), begin + self._start[last], begin + host[last])
        for place in range(order.num_tasks):
            virtual = int(chunks[place]) * order.num_stages + self._stage
            name = f"{TASK_NAMES[kinds[place]]} stage={virtual} microbatch={order.microbatch[self._stage, place]}"
            self._events.append(annotation(name, begin + int(host[place]), begin + int(self._middle[place])))

    def _pass_template(self, kind: int, chunk: int, more_ns: int = 0) -> Template:
        timeline, work = self._simulated.timeline, self._simulated.stages[self._stage].chunks[chunk]
        backward = [(work.backward_input, timeline.durations.backward_input)]
        weight = [(work.backward_weight, timeline.durations.backward_weight)]
        parts = {
            FORWARD: [(work.forward, timeline.durations.forward)],
            # In one pass: communication may overlap with both parts.
            BACKWARD: backward if timeline.order.is_split else backward + weight,
            BACKWARD_WEIGHT: weight,
        }[kind]
        at = (self._stage, chunk, self._which)
        operations = [operation for part, _ in parts for operation in part]
        compute = sum(one_ns(time.compute[at]) for _, time in parts) + more_ns
        comm = sum(one_ns(time.comm[at]) for _, time in parts)
        host, own_host = (sum(one_ns(time.host_at(at, pace)) for _, time in parts) for pace in (1.0, self._pace))
        return self._lay_out(operations, compute, comm, host, own_host)

    def _lay_out(
        self, operations: Sequence[Operation], compute: int, comm: int, host: int = 0, own_host: int = 0
    ) -> Template:
        """Return a pass of this rank, which waits in collectives for the slowest rank of its groups.

        Args:
            operations: Operations of the pass.
            compute: Computation of the slowest rank, with waits for the host. Unit: ns.
            comm: Exposed communication. Unit: ns.
            host: Waits of the slowest rank for the host. Unit: ns.
            own_host: Waits of this rank for the host. Unit: ns.
        """
        laid = lay_out(operations, self._simulated.time_of, compute, comm, host, ends_with_pass=self._is_uneven)
        if self._pace < 1:
            saved = (1 - self._pace) * (compute - host)
            laid = wait_for_slowest(laid, self._pace, (own_host - host) / saved if saved else 0.0)
        return self._template(laid, laid.start // 2)

    def _template(self, laid: Runs, launch_ns: Int64) -> Template:
        """Return the kernels of a pass with the times of their launches. Equal runs of an operation share a text."""
        number: dict[tuple[int, str, int], int] = {}
        runs = zip(laid.which.tolist(), laid.stream, laid.duration.tolist(), strict=True)
        which = np.array([number.setdefault(run, len(number)) for run in runs], dtype=np.int64)
        described = {index: self._describe(laid.operations[index]) for index in dict.fromkeys(laid.which.tolist())}
        texts = []
        for index, stream, duration in number:
            name, more = described[index]
            texts.append(KernelText.of(name, self._stream(stream), duration, more))
        return Template(texts, which, laid.start, launch_ns)

    def _describe(self, operation: Operation) -> tuple[str, str]:
        """Return the name of an operation, and arguments of its event."""
        gpu = self._simulated.job.gpu
        if isinstance(operation, Kernel):
            return kernel_name(operation, gpu), ""
        name, collective = communication_names(operation, gpu)
        size = len(self._groups[operation.group].ranks)
        whole = round(operation.num_bytes)
        num_in = whole // size if operation.kind == "all_gather" else whole
        num_out = whole // size if operation.kind == "reduce_scatter" else whole
        return name, self._arguments(collective, num_in, num_out, operation.group)

    def _arguments(self, collective: str, num_in: int, num_out: int, group: str) -> str:
        return (
            f'"Collective name":"{collective}","In msg nelems":{num_in},"Out msg nelems":{num_out},"dtype":"Byte",'
            f"{self._groups[group].arguments}"
        )

    def _add_sends(self, begin: int) -> None:
        """Add sends to other stages and receives from them."""
        timeline, order = self._simulated.timeline, self._simulated.timeline.order
        if order.num_stages == 1:
            return
        sent, arrival = (ns(times[:, :, self._which]).reshape(-1) for times in (timeline.sent, timeline.arrival))
        posted = ns(timeline.posted(self._stage, self._which))
        for kind, ahead in ((FORWARD, 1), (BACKWARD, -1)):
            of_kind = order.kind[self._stage] == kind
            sends = np.flatnonzero(of_kind & order.is_sent[self._stage]) + self._stage * order.num_tasks
            places = np.flatnonzero(of_kind & (order.needs[self._stage] >= 0))
            received = order.needs[self._stage, places]
            self._add_transfers(begin, "send", kind, ahead, sent[sends], arrival[sends])
            self._add_transfers(begin, "recv", kind, -ahead, posted[places], arrival[received])

    def _add_transfers(self, begin: int, what: str, kind: int, ahead: int, start: Int64, end: Int64) -> None:
        """Add sends to, or receives from, the stage at distance `ahead`.

        Args:
            begin: Start of the step.
            what: send or recv.
            kind: Kind of task.
            ahead: Number of stages to the peer.
            start: Starts from the start of the step; shape (num_transfers,). Unit: ns.
            end: Ends; same shape.
        """
        job = self._simulated.job
        bytes_ = round(max(chunk.send_bytes for stage in self._simulated.stages for chunk in stage.chunks))
        name, _ = communication_names(Communication("send_recv", "pp", bytes_), job.gpu)
        peer = self._groups["pp"].ranks[(self._stage + ahead) % job.layout.pp]
        end_of = "Dst Rank" if what == "send" else "Src Rank"
        more = self._arguments(what, bytes_, bytes_, "pp") + f'"{end_of}":{peer},'
        for duration in np.unique(end - start).tolist():
            alike = start[end - start == duration]
            text = KernelText.of(name, self._stream(f"{what} {kind}"), duration, more)
            if duration:
                self._add(Template.of_one(text), begin + alike, begin + self._work_before(alike))

    def _work_before(self, start: Int64) -> Int64:
        """Return the end of the last task before each time, or the start of the step."""
        ends = np.concatenate(([0], self._end))
        return np.asarray(ends[np.searchsorted(self._end, start, side="right")])

    def _add_gradients(self, begin: int) -> None:
        timeline, stage, which = self._simulated.timeline, self._stage, self._which
        gathers, reductions, after = split_sync(self._simulated.stages[stage])
        gathered = np.cumsum(timeline.durations.gather_overlapped[stage])
        for chunk in range(timeline.order.num_chunks):
            before = gathered[chunk] - timeline.durations.gather_overlapped[stage, chunk]
            self._add_spread(begin, gathers, before, gathered[chunk])
            start, end = timeline.sync[stage, chunk].tolist()
            self._add_spread(begin, reductions, start, end, timeline.joins_sync(stage, chunk, which))
        start, end = timeline.final_sync[stage].tolist()
        self._add_spread(begin, after, start, end, timeline.joins_final_sync(stage, which))
        last = int(self._middle[-1]) if len(self._middle) else 0
        self._events.append(annotation("grad_sync", begin + last, begin + self._own_end))

    @property
    def _own_end(self) -> int:
        return int(self._end[-1]) if len(self._end) else 0

    def _add_spread(
        self, begin: int, collectives: list[Communication], start_s: float, end_s: float, joined_s: float | None = None
    ) -> None:
        """Add consecutive collectives; in the first one between replicas, the rank waits for the slowest replica.

        Args:
            begin: Start of the step.
            collectives: The collectives.
            start_s: Time at which all replicas have arrived. Unit: s.
            end_s: End of the last collective. Unit: s.
            joined_s: Time at which this rank arrives; None: with the others. Unit: s.
        """
        start, end = one_ns(start_s), one_ns(end_s)
        if end == start:
            return
        wait_ns = 0 if joined_s is None else max(start - one_ns(joined_s), 0)
        laid = spread(collectives, self._simulated.time_of, end - start)
        at, duration = start + laid.start, laid.duration.copy()
        if wait_ns:
            # Collectives before the first one between replicas are early, and that one waits.
            waiting = [index for index, one in enumerate(laid.operations) if self._is_between_replicas(one)]
            first = int(np.append(np.flatnonzero(np.isin(laid.which, waiting)), len(at))[0])
            at[: first + 1] -= wait_ns
            duration[first : first + 1] += wait_ns
        template = self._template(replace(laid, start=at, duration=duration), self._work_before(at))
        self._add(template, np.array([begin]), np.array([begin]))

    def _is_between_replicas(self, operation: Operation) -> bool:
        ranks = self._groups[operation.group].ranks if isinstance(operation, Communication) else (0,)
        return ranks[-1] - ranks[0] >= self._simulated.job.mesh.ranks_per_replica

    def _add_optimizer(self, begin: int) -> None:
        timeline = self._simulated.timeline
        optimizer = timeline.durations.optimizer
        at = (self._stage, self._which)
        self._add_norms(begin)
        compute, comm = int(ns(optimizer.compute[at])), int(ns(optimizer.comm[at]))
        template = self._lay_out(self._simulated.stages[self._stage].optimizer, compute, comm)
        start = begin + one_ns(timeline.optimizer_start)
        host = begin + self._own_end
        self._add(template, np.array([start]), np.array([host]))
        self._events.append(annotation("optimizer", host, host + (compute + comm) // 2 + 1))

    def _add_norms(self, begin: int) -> None:
        """Add all-reduces of the gradient norm: over replicas if nothing else waits for them, then over stages."""
        timeline, stage = self._simulated.timeline, self._stage
        _, reductions, after = split_sync(self._simulated.stages[stage])
        reduced, done = timeline.final_sync[stage].tolist()
        if reductions and not after:
            self._add_norm(begin, reductions[-1].group, timeline.joins_final_sync(stage, self._which), reduced)
        if timeline.order.num_stages > 1:
            self._add_norm(begin, "pp", done, timeline.optimizer_start)

    def _add_norm(self, begin: int, group: str, start_s: float, end_s: float) -> None:
        name, more = self._describe(Communication("all_reduce", group, _NORM_BYTES))
        when = np.array([one_ns(start_s)])
        template = Template.of_one(KernelText.of(name, self._stream("norm"), one_ns(end_s) - int(when[0]), more))
        self._add(template, begin + when, begin + self._work_before(when))

    def _add(self, template: Template, device_ns: Int64, host_ns: Int64) -> None:
        self._events.append(template.fill(device_ns, host_ns, self._number))
        self._number += template.num_launched * len(device_ns)

    def _stream(self, name: str) -> int:
        return self._streams.setdefault(name, _MAIN_STREAM + len(self._streams))


_KERNELS = {
    ("attention", "backward"): "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    ("attention", "softmax"): "scaled_masked_softmax_kernel",
    ("attention", "linear"): "_chunk_scan_kernel",
    ("attention", ""): "flash_fwd_kernel",
    ("conv", ""): "causal_conv1d_kernel",
    ("norm", "backward"): "ln_bwd_kernel",
    ("norm", ""): "ln_fwd_kernel",
    ("embedding", "backward"): "embedding_backward_kernel",
    ("embedding", ""): "embedding_lookup_kernel",
    ("loss", "backward"): "cross_entropy_backward_kernel",
    ("loss", ""): "cross_entropy_forward_kernel",
    ("optimizer", "clip"): "multi_tensor_l2norm_scale_kernel",
    ("optimizer", "adam"): "multi_tensor_adam_kernel",
    ("optimizer", ""): "multi_tensor_apply_{kind}",
    ("moe", "router"): "moe_router_topk_softmax_kernel",
    ("moe", ""): "moe_{kind}_kernel",
    # Not `rope` or `cast`: those are kernels of attention and of quantisation to the taxonomy.
    ("elementwise", "rope"): "elementwise_kernel_rotation",
    ("elementwise", "cast"): "elementwise_kernel_conversion",
    ("elementwise", ""): "elementwise_kernel_{kind}",
}
"""Kernel names by class and kind, or by class alone."""

_COLLECTIVES: dict[CommKind, tuple[str, str]] = {
    "all_reduce": ("AllReduce_Sum_bf16_RING_LL", "allreduce"),
    "all_gather": ("AllGather_RING_LL", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "broadcast": ("Broadcast_RING_LL", "broadcast"),
    "send_recv": ("SendRecv", "send_recv"),
}
"""NCCL's kernel, and torch's name of the collective."""


def kernel_name(kernel: Kernel, gpu: GpuConfig) -> str:
    """Return the name of a kernel; GEMMs have the library's name and their shape."""
    if kernel.cls == "gemm":
        return _gemm_name(kernel, gpu)
    name = _KERNELS.get((kernel.cls, kernel.kind)) or _KERNELS.get((kernel.cls, ""))
    return name.format(kind=kernel.kind) if name else f"{kernel.cls}_{kernel.kind}_kernel"


def communication_names(communication: Communication, gpu: GpuConfig) -> tuple[str, str]:
    """Return the name of the kernel of a collective or send, and torch's name of the collective."""
    kernel, collective = _COLLECTIVES[communication.kind]
    if gpu.vendor == "amd":
        # RCCL has one name for all its kernels.
        return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", collective
    return f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", collective


def _gemm_name(kernel: Kernel, gpu: GpuConfig) -> str:
    shape = "x".join(map(str, kernel.shape))
    if kernel.kind.startswith("grouped"):
        return f"cutlass_grouped_gemm_{kernel.precision}_{shape}"
    return f"{getattr(gpu.gemm_kernels, kernel.precision) or gpu.gemm_kernels.bf16}_{shape}"
