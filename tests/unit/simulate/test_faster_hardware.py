"""Better hardware never predicts a longer step: more and faster adapters, NVLink for PCIe, a faster GPU."""

import itertools
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.simulate.jobs import gpt, job, llama, mixtral
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.model import ModelConfig
from triplepoint.published.fabric import usual_fabric
from triplepoint.published.network import StatedNetwork, read_network
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.collectives.times import CollectiveModel
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.fabric import Fabric, Group, Network, network_levels, scale_up_levels
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import CommKind
from triplepoint.simulate.step import simulate_step

CONFIG = Path("config")
CALIBRATION = Calibration.load(CONFIG)
GPUS = {path.stem: Catalogue(CONFIG).gpu(path.stem) for path in sorted((CONFIG / "gpus").glob("*.yaml"))}
TOLERANCE = 1e-9
"""Relative, of rounding."""
SHARED = 2e-3
"""Relative: collectives of replicas that are done sooner take more of the links inside the node meanwhile, from those
of tensor parallelism. Found: 7e-4, for 16 adapters of 800 Gb/s in place of 8 under a model of 512 hidden.
"""


def specification(gpu: GpuConfig) -> tuple[float, ...]:
    """Return the numbers of a data sheet that a step depends on, links aside."""
    peaks = gpu.peak_bf16_flops, gpu.peak_fp32_flops, gpu.memory_bandwidth, gpu.package_power_limit
    return tuple(number.value for number in peaks)


def is_faster(one: GpuConfig, other: GpuConfig) -> bool:
    """Return whether the other GPU is no worse in any number, and better in one."""
    numbers = list(zip(specification(one), specification(other), strict=True))
    return one.vendor == other.vendor and all(a <= b for a, b in numbers) and any(a < b for a, b in numbers)


FASTER = [(one, other) for one, other in product(GPUS, GPUS) if is_faster(GPUS[one], GPUS[other])]


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """Return a model of 8 layers, small to large."""
    size = draw(st.sampled_from([512, 2048, 4096, 8192]))
    make = draw(st.sampled_from([gpt, llama, mixtral]))
    heads = size // 64
    return make(
        hidden_size=size,
        ffn_hidden_size=draw(st.sampled_from([2, 4])) * size,
        num_attention_heads=heads,
        num_query_groups=draw(st.sampled_from([8, heads])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Return a job on up to 512 GPUs."""
    model = draw(models())
    tp, pp, dp = (draw(st.sampled_from(degrees)) for degrees in ((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16)))
    vp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    micro_batch = draw(st.sampled_from([1, 2, 4]))
    sharding = draw(st.sampled_from(["no_shard", "optim", "optim_grads_params"]))
    return job(
        model,
        tp=tp,
        pp=pp,
        dp=dp,
        vp=vp,
        schedule="1f1b" if vp == 1 else "interleaved_1f1b",
        ep=min(dp, draw(st.sampled_from([1, 2, 4]))) if model.moe else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        data_parallel_sharding=sharding,
        micro_batch_size=micro_batch,
        global_batch_size=micro_batch * dp * pp * draw(st.sampled_from([1, 4])),
        sequence_length=draw(st.sampled_from([512, 2048, 8192])),
        recompute=draw(st.sampled_from(["none", "full"])),
        overlap=frozenset(draw(st.sets(st.sampled_from(["grad", "param", "tp"])))),
        stack="Megatron-Core r0.8",
    )


def time_s(one: Job, gpu: GpuConfig, fabric: Fabric, constants: Constants | None = None) -> float:
    """Return the time of a step on some hardware."""
    there = replace(one, gpu=gpu, fabric=fabric)
    return simulate_step(there, constants or CALIBRATION.constants(there), CONFIG).time_s


def usual(gpu: GpuConfig, one: Job, stated: StatedNetwork) -> Fabric:
    return usual_fabric(gpu, one.num_gpus, stated, CONFIG)


@given(jobs(), st.sampled_from(FASTER))
@settings(max_examples=examples(100), deadline=None)
def test_a_faster_gpu_takes_no_longer(one: Job, pair: tuple[str, str]) -> None:
    slow, fast = (GPUS[name] for name in pair)
    fabric, usual_constants = usual(GPUS["h100"], one, StatedNetwork()), Constants()
    longer = time_s(one, slow, fabric, usual_constants)
    assert time_s(one, fast, fabric, usual_constants) <= longer * (1 + TOLERANCE)


@st.composite
def better_networks(draw: st.DrawFn) -> tuple[StatedNetwork, StatedNetwork]:
    """Return two networks; the second has as many adapters as the first or more, none slower."""
    counts, rates = (1, 2, 3, 4, 6, 8, 16), (100, 200, 400, 800)
    few, slow = draw(st.sampled_from(counts)), draw(st.sampled_from(rates))
    many = draw(st.sampled_from([count for count in counts if count >= few]))
    fast = draw(st.sampled_from([rate for rate in rates if rate >= slow]))
    kind = draw(st.sampled_from(["IB", "RoCE", "Ethernet"]))
    return read_network(f"{few}x{slow}G {kind}/node"), read_network(f"{many}x{fast}G {kind}/node")


@given(jobs(), st.sampled_from(sorted(GPUS)), better_networks())
@settings(max_examples=examples(100), deadline=None)
def test_more_and_faster_adapters_take_no_longer(
    one: Job, name: str, networks: tuple[StatedNetwork, StatedNetwork]
) -> None:
    few, many = (time_s(one, GPUS[name], usual(GPUS[name], one, network)) for network in networks)
    assert many <= few * (1 + SHARED)


def test_more_adapters_take_from_links_inside_the_node_less_than_is_allowed() -> None:
    one = job(
        gpt(hidden_size=512, ffn_hidden_size=1024, num_attention_heads=8, num_query_groups=8),
        tp=4, dp=4, sequence_parallel=True, data_parallel_sharding="optim_grads_params", micro_batch_size=1,
        global_batch_size=4, sequence_length=512, recompute="none", overlap=frozenset({"grad"}),
        stack="Megatron-Core r0.8",
    )  # fmt: skip
    few, many = (
        time_s(one, GPUS["a100"], usual(GPUS["a100"], one, read_network(f"{num}x800G IB/node"))) for num in (8, 16)
    )
    assert TOLERANCE < many / few - 1 < SHARED


@given(
    st.sampled_from(sorted(GPUS)),
    better_networks(),
    st.sampled_from(get_args(CommKind)),
    st.sampled_from([2, 4, 8, 64]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.floats(1.0, 1e10),
)
@settings(max_examples=examples(500), deadline=None)
def test_collectives_of_more_and_faster_adapters_take_no_longer(
    name: str,
    networks: tuple[StatedNetwork, StatedNetwork],
    kind: CommKind,
    size: int,
    stride: int,
    num_bytes: float,
) -> None:
    fabrics = [usual_fabric(GPUS[name], size * stride, network, CONFIG) for network in networks]
    few, many = (
        CollectiveModel.load(fabric, CONFIG).time_s(kind, num_bytes, Group(size, stride)) for fabric in fabrics
    )
    assert many <= few * (1 + TOLERANCE)


def test_four_adapters_are_no_slower_than_one_of_their_rate() -> None:
    """Rings of some of a node's GPUs, which leave it by another adapter than they enter it."""
    group = Group(32, 2)
    fabrics = [usual_fabric(GPUS["a100"], 64, read_network(f"{text} IB/node"), CONFIG) for text in ("1x400G", "4x400G")]
    one, four = (CollectiveModel.load(fabric, CONFIG).time_s("all_reduce", 1e9, group) for fabric in fabrics)
    assert four <= one


@pytest.mark.parametrize("kind", ["IB", "RoCE", "Ethernet"])
@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_twice_as_fast_adapters_are_faster_for_large_all_reduces(kind: str, stride: int) -> None:
    """Rings that leave a node by one adapter reach all of it, however fast it is."""
    times = [
        CollectiveModel.load(usual_fabric(GPUS["h100"], 64, read_network(f"1x{rate}G {kind}/node"), CONFIG), CONFIG)
        .time_s("all_reduce", 1e10, Group(64 // stride, stride))
        for rate in (100, 200, 400, 800)
    ]  # fmt: skip
    assert all(fast < 0.6 * slow for slow, fast in itertools.pairwise(times))


@given(
    st.sampled_from(sorted(GPUS)),
    st.sampled_from(get_args(CommKind)),
    st.sampled_from([(size, stride) for size in (2, 4, 8, 16, 64) for stride in (1, 2, 4, 8, 16)]),
    st.floats(2.0**20, 1e10),
    st.sampled_from([1, 2, 4, 6, 8, 16]),
    st.sampled_from([50, 100, 200, 400, 800]),
)
@settings(max_examples=examples(300), deadline=None)
def test_ethernet_is_no_faster_than_infiniband_of_its_rate(
    name: str, kind: CommKind, sizes: tuple[int, int], num_bytes: float, num_nics: int, rate: int
) -> None:
    group = Group(*sizes)
    ethernet, infiniband = (
        CollectiveModel.load(
            usual_fabric(
                GPUS[name], group.size * group.stride, read_network(f"{num_nics}x{rate}G {link}/node"), CONFIG
            ),
            CONFIG,
        ).time_s(kind, num_bytes, group)
        for link in ("Ethernet", "IB")
    )
    assert infiniband <= ethernet * (1 + TOLERANCE)


@given(jobs(), st.sampled_from(sorted(GPUS)), st.integers(20, 3200), st.integers(20, 3200))
@settings(max_examples=examples(100), deadline=None)
def test_more_bandwidth_of_adapters_not_counted_takes_no_longer(one: Job, name: str, less: int, more: int) -> None:
    less, more = sorted((less, more))
    fabrics = [usual(GPUS[name], one, StatedNetwork(bandwidth=rate * 1e9 / 8)) for rate in (less, more)]
    times = [time_s(one, GPUS[name], fabric) for fabric in fabrics]
    assert times[1] <= times[0] * (1 + TOLERANCE)


@pytest.mark.parametrize(
    ("name", "pcie", "bytes_per_s", "nvlink"),
    [("a100", "pcie4", 32e9, "nvlink3"), ("h100", "pcie5", 64e9, "nvlink4"), ("b200", "pcie5", 64e9, "nvlink5")],
)
@given(one=jobs())
@settings(max_examples=examples(40), deadline=None)
def test_nvlink_takes_no_longer_than_pcie(name: str, pcie: str, bytes_per_s: float, nvlink: str, one: Job) -> None:
    network = network_levels(Network(400e9, 8), load_link("infiniband", CONFIG), 8, 1 << 20)
    bandwidth = GPUS[name].scale_up_bandwidth.value
    ways = ((pcie, bytes_per_s), (nvlink, bandwidth / 2), (nvlink, bandwidth))
    fabrics = [Fabric(scale_up_levels(load_link(link, CONFIG), 8, rate) + network) for link, rate in ways]
    slow, half, fast = (time_s(one, GPUS[name], fabric) for fabric in fabrics)
    assert fast <= half * (1 + TOLERANCE) and fast <= slow * (1 + TOLERANCE)
