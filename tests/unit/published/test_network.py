"""Nodes and networks of published tables."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.published.cells import NEMOTRON
from triplepoint.config.catalogue import Catalogue
from triplepoint.published.fabric import usual_fabric
from triplepoint.published.machines import MACHINES, Machine
from triplepoint.published.network import StatedNetwork, read_network
from triplepoint.published.rows import read_row
from triplepoint.published.words import UnreadableError

CONFIG = Path("config")
GPUS = Catalogue(CONFIG).gpus


@pytest.mark.parametrize(
    ("text", "gigabits"),
    [
        ("EOS DGX H100: NVLink4 900GB/s + 8x400G IB/node", 3200),
        ("1600 Gbps/node RoCE", 1600),
        ("NVLink; inter-node 800 Gb/s per node in vTrain configs", 800),
        ("Selene: NVLink3 600GB/s, 8x HDR200 IB/node + SHARP", 1600),
        ("8x NDR", 3200),
        ("4x 200Gb/s HDR", 800),
        ("3.2 Tbps EFA", 3200),
        ("50 GB/s per GPU", 400),
        ("100GbE", 100),
        ("2x100GbE TCP", 200),
        ("100 Gb Ethernet", 100),
        ("200 Gb/s x8", 1600),
        ("8\u00d7400G", 3200),
        ("8x400G, 2x200G storage", 3200),
        ("8 400G NICs", 3200),
        ("eight 400G NICs", 3200),
        ("Quantum-2 400G InfiniBand x8", 3200),
        ("8x400Gb", 3200),
        ("NDR x8", 3200),
        ("HDR InfiniBand x4", 800),
        ("8x400G ConnectX-7 NICs", 3200),
        ("10 gigabit Ethernet", 10),
        ("900GB/s NVLink", None),
        ("n/a", None),
        ("8x 80GB, NVLink", None),
        ("single node NVLink", None),
        ("NVLink3 600GB/s", None),
        ("", None),
    ],
)
def test_read_network_knows_bandwidth(text: str, gigabits: float | None) -> None:
    found = read_network(text).bandwidth
    assert found == (None if gigabits is None else pytest.approx(gigabits * 1e9 / 8))


def test_read_network_knows_whose_bandwidth_and_what_switches_do() -> None:
    assert read_network("400 Gb/s per GPU").is_per_gpu
    assert read_network("8x HDR200 IB/node + SHARP").has_reduction
    assert read_network("NVL72, 4x400G IB").domain_size == 72


@pytest.mark.parametrize(
    ("text", "num_nics", "gpus_per_node", "domain", "link"),
    [
        ("4x H200/node, 4x400", 4, 4, None, "infiniband"),
        ("NVL4", None, None, 4, "infiniband"),
        ("NVL72, 4x400G", 4, None, 72, "infiniband"),
        ("8x400 Gb/s IB", 8, None, None, "infiniband"),
        ("RoCE 4x200", 4, None, None, "roce"),
        ("8 GPUs per node, 8x ConnectX-7 400G RoCE", 8, 8, None, "roce"),
        ("8x HDR200 IB/node", 8, None, None, "infiniband"),
        ("H100 NVL 94GB", None, None, None, "infiniband"),
    ],
)
def test_read_network_knows_nodes(
    text: str, num_nics: int | None, gpus_per_node: int | None, domain: int | None, link: str
) -> None:
    found = read_network(text)
    assert (found.num_nics, found.gpus_per_node) == (num_nics, gpus_per_node)
    assert (found.domain_size, found.link) == (domain, link)


@pytest.mark.parametrize(
    ("text", "is_by_rail", "oversubscription"),
    [
        ("rail-optimised 8x400G", True, 1),
        ("8x400G, not rail-optimized", False, 1),
        ("2:1 oversubscription", None, 2),
        ("oversubscribed by a factor of 4", None, 4),
        ("blocking 1:2", None, 2),
        ("non-blocking fat tree", None, 1),
        ("8x400G", None, 1),
    ],
)
def test_read_network_knows_switches(text: str, is_by_rail: bool | None, oversubscription: float) -> None:
    found = read_network(text)
    assert (found.is_rail_optimised, found.oversubscription) == (is_by_rail, oversubscription)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("InfiniBand and RoCE", "names infiniband and roce"),
        ("8x400G IB, 1600 Gb/s per node", "3200 Gb/s together and 1600 Gb/s a node"),
        ("NVL36 or NVL72", "an NVLink domain as 36 and 72"),
        ("4 GPUs/node, 8 GPUs/node", "GPUs of a node as 4 and 8"),
        ("oversubscription 999:1", "an oversubscription of 999"),
        ("8x400G and 2x200G", "2x200G and 8x400G"),
        ("400 Gb/s per node, 800 Gb/s per node", "400 and 800 Gb/s of a node"),
        ("0x400", "'0x400', expected 1 to 64 adapters"),
        ("0 Gb/s IB", "expected a rate above 0"),
        ("8x4OOG", "expected a rate"),
        ("NVLink, 400", "'400', expected a rate"),
        ("no RDMA", "write what is between nodes"),
        ("InfiniBand, no RDMA", "write what is between nodes"),
        ("infiniban 8x400G", "did you mean 'infiniband'"),
        ("8x400G RoEC", "did you mean 'roce'"),
        ("fast network", "expected nodes and network such as"),
        ("garbage", "expected nodes and network such as"),
        ("-8x400", "'-8', expected a number above 0"),
        ("HDR 4x", "lanes or adapters of a node"),
        ("4 NICs, 8x400G", "counts 8 and 4 adapters"),
        ("4 NICs, 8 NICs", "counts 4 and 8 adapters"),
    ],
)
def test_read_network_refuses_what_contradicts_itself(text: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_network(text)


def test_read_network_knows_of_what_a_rate_is() -> None:
    assert not read_network("8x400G IB, one NIC per GPU").is_per_gpu
    assert read_network("HDR IB").nic_bandwidth == read_network("200 Gb/s per NIC").nic_bandwidth == 25e9
    assert read_network("HDR100").nic_bandwidth == 12.5e9
    assert read_network("100GbE").link == read_network("Ethernet, no RDMA").link == "ethernet"
    assert read_network("1600 Gbps").is_of_unknown and not read_network("1600 Gbps total").is_of_unknown
    assert not read_network("8x NDR, no SHARP").has_reduction


def test_read_network_keeps_words_that_say_nothing() -> None:
    assert read_network("Foobar site, 8x400G").unread == ("foobar", "site")
    assert read_network("EOS DGX H100: NVLink4 900GB/s + 8x400G IB/node").unread == ()


@given(st.text(max_size=200))
def test_read_network_reads_or_refuses_any_text(text: str) -> None:
    try:
        read_network(text)
    except UnreadableError as error:
        assert "\n" not in str(error) and len(str(error)) < 200


NO_SHAPE = dict.fromkeys(("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "moe_ffn"), "")


def levels(gpu: str, num_gpus: int, text: str) -> list[tuple[int, float]]:
    fabric = usual_fabric(GPUS[gpu], num_gpus, read_network(text), CONFIG)
    return [(level.num_gpus, level.bandwidth / 1e9) for level in fabric.levels]


def test_usual_fabric_of_nodes_as_stated() -> None:
    assert levels("h200", 64, "") == [(8, 450), (64, 50)]
    # Half a node has half of the usual adapters, unless they are stated: two of 400 Gb/s for four GPUs.
    assert levels("h200", 64, "4x H200/node") == [(4, 450), (64, 50)]
    assert levels("h200", 64, "4x H200/node, 2x400G") == [(4, 450), (64, 25)]
    assert levels("l40s", 16, "") == [(8, 32), (16, 6.25)]


def test_usual_fabric_of_nvlink_domains() -> None:
    assert levels("gb200", 144, "") == [(72, 900), (144, 50)]
    assert levels("gb200", 144, "NVL36") == [(36, 900), (144, 50)]
    # Adapters are those of a node of four GPUs, not of the domain.
    assert levels("gb300", 144, "NVL72, 4x400G") == [(72, 900), (144, 50)]
    assert levels("h200-nvl", 16, "NVL4") == [(4, 450), (8, 64), (16, 25)]


def test_usual_fabric_oversubscribed_is_slower_past_the_leaf() -> None:
    assert levels("h100", 1024, "rail-optimised, 2:1 oversubscription") == [(8, 450), (256, 50), (1024, 25)]
    # Eight adapters a node on leaves of 32 ports.
    assert levels("h100", 1024, "not rail-optimised, 2:1 oversubscription") == [(8, 450), (32, 50), (1024, 25)]


@pytest.mark.parametrize(
    ("gpu", "text", "message"),
    [
        ("h100", "NVL72", "an NVLink domain of 72, h100 has 8"),
        ("h100", "16 GPUs per node", "nodes of 16 GPUs, h100 has 8"),
        ("h100", "NVL4, 8 GPUs per node", "nodes of 8 GPUs and an NVLink domain of 4"),
        ("h100", "7 GPUs/node", "nodes of 7 GPUs, h100 stands in nodes of 1, 2, 4, 8"),
        ("l40s", "7 GPUs/node", "nodes of 7 GPUs, l40s stands in nodes of 1, 2, 4, 6, 8"),
        ("h100", "400G IB", r"of an adapter \(8x400G\) or a node \(400 Gb/s per node\); write which"),
        ("h100", "Spectrum-X 400GbE", r"of an adapter \(8x400G\) or a node"),
        ("h100", "200Gbps", r"of an adapter \(8x200G\) or a node"),
        ("a100", "200Gbps", r"of an adapter \(8x200G\) or a node"),
        ("h100", "single node", "all is in one node, n_gpus is 64"),
        ("h100", "NVLink only", "all is in one node, n_gpus is 64"),
        ("h100", "2 nodes", "nodes of 32 GPUs, h100 has 8"),
        ("h100", "16 nodes x 8 GPUs", "16 nodes of 8 GPUs, n_gpus is 64"),
        ("h100", "NVLink 600 GB/s", "NVLink of 600 GB/s, h100 has 900 GB/s"),
        ("h100", "p4d.24xlarge", "a machine with A100, gpu is h100"),
        ("h100", "Frontier", "a machine with MI250X, gpu is h100"),
        ("h100", "Ethernet", "Ethernet of no rate"),
        ("h100", "TCP", "Ethernet of no rate"),
        ("h100", "4 NICs per node, 1 NIC per GPU", "4 adapters of a node and 8 of its 8 GPUs"),
    ],
)
def test_usual_fabric_refuses_nodes_that_a_gpu_has_not(gpu: str, text: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        usual_fabric(GPUS[gpu], 64, read_network(text), CONFIG)


@pytest.mark.parametrize(
    ("gpu", "text", "gigabits", "adapter_gigabits"),
    [
        ("h100", "1 NIC per node", 400, 400),
        ("h100", "4 NICs", 1600, 400),
        ("h100", "4 IB NICs NDR", 1600, 400),
        ("h100", "one HDR NIC per 2 GPUs", 800, 200),
        ("h100", "1 NIC per GPU", 3200, 400),
        ("h100", "dual-rail EDR", 200, 100),
        ("h100", "HGX H100, 8xCX7", 3200, 400),
        ("h100", "FDR IB", 448, 56),
        ("h100", "QDR InfiniBand", 320, 40),
        ("h100", "Omni-Path 100", 800, 100),
        ("h100", "a3-highgpu-8g", 800, 200),
        ("h100", "a3-megagpu-8g", 1600, 200),
        ("h200", "a3-ultragpu-8g", 3200, 400),
        ("a100", "a2-ultragpu-8g", 100, 100),
        ("a100", "p4d.24xlarge", 400, 100),
        ("a100", "400Gb/s NICs, 8 per node", 3200, 400),
        ("a100", "1 NIC per GPU, 400 Gb/s", 3200, 400),
        ("a100", "8x Mellanox ConnectX-6 200Gb/s", 1600, 200),
        ("mi250x", "Frontier", 800, 200),
        ("h100", "EFAv2 3200 Gbps", 3200, 400),
        ("h100", "400 Gbps EFA", 400, 400),
    ],
)
def test_usual_fabric_of_counted_adapters_and_machines(
    gpu: str, text: str, gigabits: float, adapter_gigabits: float
) -> None:
    fabric = usual_fabric(GPUS[gpu], 64, read_network(text), CONFIG)
    rail = fabric.levels[-1]
    assert rail.bandwidth * 8 / (1e9 / 8) == pytest.approx(gigabits)
    assert rail.single == pytest.approx(adapter_gigabits * 1e9 / 8)


def test_usual_fabric_of_a_site_with_nodes_of_four() -> None:
    assert levels("a100", 64, "JUWELS Booster") == [(4, 300), (64, 25)]
    assert levels("h100", 64, "16 nodes, 4x400G")[0] == (4, 450)


@pytest.mark.parametrize("rate", ["10", "100"])
def test_gigabit_ethernet_with_a_space_is_the_same(rate: str) -> None:
    assert read_network(f"{rate} GbE") == read_network(f"{rate}GbE")
    assert read_network(f"{rate} GbE").link == "ethernet"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.network)
def test_every_machine_has_known_gpus_and_a_network_that_is_read(machine: Machine) -> None:
    assert {gpu.chip for gpu in GPUS.values()} >= set(machine.chips)
    assert read_network(machine.network).bandwidth and not read_network(machine.network).is_of_unknown


def test_names_of_unknown_instances_are_no_rates() -> None:
    found = read_network("a3-foogpu-8g")
    assert (found.bandwidth, found.unread) == (None, ("a3-foogpu-8g",))


def test_usual_fabric_counts_adapters_of_a_stated_bandwidth() -> None:
    # 800 Gb/s of an A100 node are four of its usual 200 Gb/s adapters: one GPU alone has a whole one.
    _, rail = usual_fabric(GPUS["a100"], 64, StatedNetwork(bandwidth=100e9), CONFIG).levels
    assert (rail.bandwidth, rail.single) == (12.5e9, 25e9)


def test_read_row_says_what_a_gpu_could_be() -> None:
    unnamed = NEMOTRON | {"gpu": "H100", "interconnect": ""}
    row = read_row(unnamed | {"n_gpus": "4", "tp": "2", "dp": "2"}, 1, CONFIG)
    assert row.status == "invalid" and "h100 (" in row.reason and "h100-pcie (" in row.reason
    row = read_row(NEMOTRON | {"gpu": "H100", "interconnect": "NVLink, 8x400G"}, 1, CONFIG)
    assert row.job and row.job.gpu.name == "h100"
    # Whole nodes of eight are modules.
    row = read_row(unnamed, 1, CONFIG)
    assert row.job and row.job.gpu.name == "h100"


def test_usual_fabric_of_adapters_of_a_rate() -> None:
    # Eight adapters of a node are usual; Summit's nodes have six GPUs.
    assert levels("h100", 64, "HDR IB") == [(8, 450), (64, 25)]
    assert levels("h100", 64, "100GbE")[1] == (64, 12.5 / 8)
    assert levels("v100", 12, "6 GPUs/node")[0][0] == 6


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"gpu": "A100", "interconnect": "8x200G"}, "'A100' is taken as a100, could be a100-40gb"),
        ({"framework": "Mgeatron"}, r"'Mgeatron' is taken as plain PyTorch.*\(did you mean megatron"),
        ({"framework": "my own trainer"}, "'my own trainer' is taken as plain PyTorch, it is none that is known"),
        ({"interconnect": "1600 Gb/s"}, "rate of the interconnect is taken as that of a node"),
        ({"interconnect": "Foobar, 8x400G"}, "interconnect: not read: foobar"),
        ({"interconnect": "InfiniBand"}, "states no rate: 8x400G of a node is assumed"),
        ({"interconnect": "4 NICs"}, "states no rate: adapters of 400G are assumed"),
        ({"interconnect": "HDR IB"}, "states no adapters: 8 of a usual node of h100 are assumed"),
    ],
)
def test_row_says_what_was_taken_for_what(cells: dict[str, str], words: str) -> None:
    found = read_row(NEMOTRON | cells, 1, CONFIG).predict(CONFIG, with_power=False)
    assert found.status == "ok"
    assert re.search(words, found.reason)


def test_row_with_known_words_says_nothing() -> None:
    assert read_row(NEMOTRON, 1, CONFIG).predict(CONFIG, with_power=False).reason == ""


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"interconnect": "4x H200/node"}, "interconnect names H200, gpu is h100"),
        ({"gpu": "L40S", "interconnect": "NVLink"}, "interconnect says NVLink, gpu is l40s"),
        ({"gpu": "A100-SXM-80GB", "interconnect": "", "notes": "40GB"}, "40 GB stand beside it, gpu is a100"),
        ({"interconnect": "garbage"}, "interconnect is 'garbage', expected"),
        ({"interconnect": "NVLink 3, 8x400G"}, "interconnect says NVLink 3, gpu is h100"),
        (
            {"model": "llama-3-8b", "params_B": "70", "interconnect": "", **NO_SHAPE},
            "params_B is 70, 'llama-3-8b' has 8",
        ),
    ],
)
def test_row_that_contradicts_itself_is_refused_in_one_line(cells: dict[str, str], words: str) -> None:
    row = read_row(NEMOTRON | cells, 1, CONFIG)
    assert row.status == "invalid" and words in row.reason


def test_read_row_of_a_gpu_without_bf16() -> None:
    v100 = NEMOTRON | {"gpu": "V100-SXM2-32GB", "interconnect": ""}
    assert "v100 has no bf16 units; set precision: fp16" in read_row(v100, 1, CONFIG).reason
    job = read_row(v100 | {"precision": ""}, 1, CONFIG).job
    assert job and job.precision == "fp16"


@pytest.mark.parametrize("name", ["h100-pcie", "h20", "gb200", "l40s", "mi355x", "v100"])
def test_intervals_of_a_gpu_that_was_not_measured_are_wider(name: str) -> None:
    known = read_row(NEMOTRON, 1, CONFIG).predict(CONFIG)
    cells = NEMOTRON | {"gpu": name, "interconnect": "", "precision": "", "tp": "8", "dp": "2"}
    found = read_row(cells, 1, CONFIG).predict(CONFIG)
    assert found.status in ("ok", "oom")
    assert found.step_time_hi_s / found.step_time_lo_s > known.step_time_hi_s / known.step_time_lo_s


def test_a_capital_b_is_a_byte_of_adapters_too() -> None:
    assert read_network("8x50 GB/s").bandwidth == read_network("8x400 Gb/s").bandwidth == 400e9


@pytest.mark.parametrize("cells", [{"interconnect": "PCIe"}, {"interconnect": "", "notes": "PCIe cards"}])
def test_words_of_a_card_beside_its_chip_are_followed(cells: dict[str, str]) -> None:
    row = read_row(NEMOTRON | {"gpu": "H100"} | cells, 1, CONFIG)
    assert row.job and row.job.gpu.name == "h100-pcie"
    assert read_row(NEMOTRON | {"gpu": "H100 SXM PCIe"}, 1, CONFIG).status == "invalid"
