"""What is kept in the memory of the host: time and memory of optimizer state and activations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.test_rules import make
from tests.unit.simulate.jobs import gpu, job, llama
from triplepoint.config.base import Quantity
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import PointError
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.fabric import Fabric, node_levels
from triplepoint.simulate.job import Job
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.limits import check_offload
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import ChunkWork, Kernel, Operation, StageWork
from triplepoint.simulate.step import costs_of
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.offload import hide_copies, kept_bytes
from triplepoint.simulate.work.training import stage_work

HOST, HOST_MEMORY = 1e9, 2e9


def with_host(host: float = HOST) -> GpuConfig:
    def rate(value: float) -> Quantity:
        return Quantity(value=value, unit="byte/s", source="made up for tests")

    return gpu().model_copy(update={"host_bandwidth": rate(host), "host_memory_bandwidth": rate(HOST_MEMORY)})


def offloading(*what: str, host: float = HOST, **changes: Any) -> Job:
    return job(llama(), gpu=with_host(host), offload=frozenset(what), **changes)


def of_kind(operations: tuple[Operation, ...], kind: str) -> list[Kernel]:
    return [one for one in operations if isinstance(one, Kernel) and one.kind == kind]


def test_optimizer_of_the_host_gets_gradients_and_gives_parameters() -> None:
    one = offloading("optim", dp=8, data_parallel_sharding="optim")
    owned = one.model.num_parameters / 8
    update = stage_work(one)[0].optimizer
    moved = {kind: sum(found.num_bytes for found in of_kind(update, kind)) for kind in ("to_host", "from_host")}
    assert moved == pytest.approx({"to_host": 4 * owned, "from_host": 2 * owned})
    # Gradient, parameter and moments read, the last three written, in 32 bits; parameters written in 16.
    (adam,) = of_kind(update, "host_adam")
    assert adam.num_bytes == pytest.approx((7 * 4 + 2) * owned)
    assert not of_kind(update, "adam")


def test_optimizer_of_the_host_takes_no_memory_of_the_gpu() -> None:
    here, there = (peak_memory(offloading(*what, dp=8, data_parallel_sharding="optim")) for what in ((), ("optim",)))
    assert here.optimizer == pytest.approx(12 * here.weights / 2 / 8)
    assert there.optimizer == 0
    assert there.weights == here.weights


def test_copies_and_updates_take_the_bandwidths_of_the_host() -> None:
    model = KernelModel.load(with_host(), Path("config"))
    times = {kind: model.time_s(Kernel("optimizer", kind, 0.0, 1e9)) for kind in ("to_host", "from_host", "host_adam")}
    assert times == pytest.approx({"to_host": 1 / 0.85, "from_host": 1 / 0.85, "host_adam": 0.5 / 0.6}, rel=1e-3)


def test_activations_are_copied_both_ways() -> None:
    one = offloading("activations")
    (work,) = stage_work(one)
    (there,), (back,) = of_kind(work.chunks[0].forward, "to_host"), of_kind(work.chunks[0].backward_input, "from_host")
    kept = kept_bytes(Blocks(Share(one)), split_layers(one)[0][0])
    assert there.num_bytes == back.num_bytes == pytest.approx(kept)


def test_computation_as_it_is_priced_hides_copies() -> None:
    copy, work = Kernel("elementwise", "to_host", 0.0, 8e9), Kernel("gemm", "forward", 1e12, 1e9)
    chunk = ChunkWork((work, copy), (work,), (), 0.0)
    times = {"to_host": 4.0, "forward": 3.0}

    def left(scale: float) -> list[float]:
        """Bytes still copied where the computation takes `scale` times 3 s."""
        (stage,) = hide_copies(
            [StageWork((chunk,), (), ())], lambda one: times[one.kind] * (scale if one is work else 1.0)
        )
        return [one.num_bytes for one in of_kind(stage.chunks[0].forward, "to_host")]

    # Of 4 s of copies 3 s are hidden; none of them where nothing is computed, all where the computation is longer.
    assert left(1.0) == pytest.approx([2e9])
    assert left(0.0) == pytest.approx([8e9])
    assert left(2.0) == []


def test_activations_of_two_layers_stay() -> None:
    here, there = (peak_memory(offloading(*what)) for what in ((), ("activations",)))
    one = Blocks(Share(offloading())).layer(llama().layer_kinds[0]).whole.saved
    assert there.activations == pytest.approx(2 * one)
    assert here.activations > there.activations


def test_offload_to_a_host_that_is_not_known_is_refused() -> None:
    point = make(offload=["optim"], dp=4, data_parallel_sharding="optim", tp=8)
    config = Catalogue(Path("config"))
    unknown = config.gpu("mi300x", "test")
    assert check_offload(point, unknown) == (
        "offload: the host of GPU type mi300x is not known (pcie_bandwidth, host_memory_bandwidth); set offload: []"
    )
    assert check_offload(point, config.gpu("gb200", "test")) is None
    with pytest.raises(PointError, match="host of gpu h100 is not known"):
        KernelModel.load(gpu(), Path("config")).time_s(Kernel("optimizer", "to_host", 0.0, 1e9))


def test_copies_to_the_host_are_not_slowed_by_factors_on_kernels() -> None:
    config, copy = Path("config"), Kernel("elementwise", "to_host", 0.0, 1e9)
    host = Catalogue(config).gpu("h100").host_link
    assert host is not None
    one = replace(offloading("activations"), gpu=Catalogue(config).gpu("h100"))
    one = replace(one, fabric=Fabric(node_levels(one.gpu, 8, config)))
    times = [costs_of(one, Constants(factor=factor), config).time_of(copy) for factor in (1.0, 1.5)]
    assert times == pytest.approx([1e9 / host.value / 0.85] * 2, rel=1e-3)
