"""Rows of table `traffic`: data rates of the links of GPUs and nodes, and their share of the capacity."""

from collections.abc import Iterator
from typing import Any

from triplepoint.aggregate.machines import Capacity, Machines
from triplepoint.aggregate.samples import Samples, why_absent
from triplepoint.manifest import Node

_DIRECTIONS = ("tx", "rx")


def traffic_rows(run: str, samples: Samples, machines: Machines) -> list[dict[str, Any]]:
    """Return the rows of GPUs in order of rank, then those of nodes.

    Args:
        run: Run id.
        samples: Samples of the run.
        machines: Machines of the run.
    """
    gpu_links, node_link, nodes = machines.links_of_gpu(), machines.links_of_node(), samples.manifest.nodes
    gpus = sorted((device.rank, node.node, device.device) for node in nodes for device in node.devices)
    node_of = {node.node: node for node in nodes}
    rows = [
        {"rank": rank} | _row(samples, node_of[number], device, link)
        for rank, number, device in gpus
        for link in gpu_links
    ]
    rows += [_row(samples, node, "host", node_link) for node in nodes]
    return [{"run": run, **row} for row in rows]


def _row(samples: Samples, node: Node, device: str, link: Capacity) -> dict[str, Any]:
    """Return the columns of one link of a GPU or host, without run and rank."""
    rates = dict(_rates(samples, node, device, link.link))
    row: dict[str, Any] = {
        "node": node.node,
        "link": link.link,
        "num_links": link.num_links,
        "capacity_bytes_per_s": link.bytes_per_s,
        "capacity_source": link.source,
        "absent": None if rates else why_absent(samples.manifest, f"{link.link}_tx_bytes"),
    }
    for direction, rate in rates.items():
        row[f"{direction}_bytes_per_s"] = rate
        row[f"{direction}_share"] = rate / link.bytes_per_s if link.bytes_per_s else None
    return row


def _rates(samples: Samples, node: Node, device: str, link: str) -> Iterator[tuple[str, float]]:
    """Yield each direction with a counter, and its mean rate over measured steps in byte/s."""
    for direction in _DIRECTIONS:
        num_bytes = samples.growth(f"{link}_{direction}_bytes", node, device)
        if num_bytes is not None:
            yield direction, float(num_bytes.sum() / samples.step_lengths_s(node).sum())
