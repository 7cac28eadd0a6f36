"""Rows of table `traffic`: bytes a second over the links of GPUs and nodes, of what the links carry."""

from collections.abc import Iterator
from typing import Any

from triplepoint.aggregate.machines import Capacity, Machines
from triplepoint.aggregate.samples import Samples, why_absent
from triplepoint.manifest import Node

_WAYS = ("tx", "rx")


def traffic_rows(run: str, samples: Samples, machines: Machines) -> list[dict[str, Any]]:
    """Return rows by rank, then those of nodes.

    Args:
        run: Run id.
        samples: Its samples.
        machines: Its machines.
    """
    of_gpu, of_node, nodes = machines.links_of_gpu(), machines.links_of_node(), samples.manifest.nodes
    gpus = sorted((device.rank, node.node, device.device) for node in nodes for device in node.devices)
    by_number = {node.node: node for node in nodes}
    rows = [
        {"rank": rank} | _row(samples, by_number[number], device, link)
        for rank, number, device in gpus
        for link in of_gpu
    ]
    rows += [_row(samples, node, "host", of_node) for node in nodes]
    return [{"run": run, **row} for row in rows]


def _row(samples: Samples, node: Node, device: str, link: Capacity) -> dict[str, Any]:
    rates = dict(_rates(samples, node, device, link.link))
    row: dict[str, Any] = {
        "node": node.node,
        "link": link.link,
        "num_links": link.num_links,
        "capacity_bytes_per_s": link.bytes_per_s,
        "capacity_source": link.source,
        "absent": None if rates else why_absent(samples.manifest, f"{link.link}_tx_bytes"),
    }
    for way, rate in rates.items():
        row[f"{way}_bytes_per_s"] = rate
        row[f"{way}_share"] = rate / link.bytes_per_s if link.bytes_per_s else None
    return row


def _rates(samples: Samples, node: Node, device: str, link: str) -> Iterator[tuple[str, float]]:
    """Yield each way that was counted, with its mean over measured steps in byte/s."""
    for way in _WAYS:
        num_bytes = samples.growth(f"{link}_{way}_bytes", node, device)
        if num_bytes is not None:
            yield way, float(num_bytes.sum() / samples.step_lengths_s(node).sum())
