"""Facts of nodes for the tests, read from fake nodes through the vendors' own bindings."""

from pathlib import Path

from tests.fakes.host import Hwmon, Port, Rapl
from tests.fakes.node import fake_node
from tests.fakes.scenario import Scenario
from triplepoint.config.catalogue import Catalogue
from triplepoint.doctor.check import Check, Expected, NodeFacts
from triplepoint.doctor.node import Sources, read_node

CATALOGUE = Catalogue(Path("config"))


def expected(cluster: str) -> Expected:
    """What a cluster of the configuration should be like."""
    return Expected.of(CATALOGUE.cluster(cluster), CATALOGUE)


def read(scenario: Scenario, at_s: float = 0.0, host: str = "node-1", node: int = 0) -> NodeFacts:
    """Facts of a fake node with one adapter, as torch sees all its GPUs."""
    scenario.host.ports.append(Port(rate="100 Gb/sec (4X EDR)"))
    scenario.host.rapl.append(Rapl())
    scenario.host.hwmon.append(Hwmon())
    scenario.is_virtual = True
    with fake_node(scenario) as fake:
        fake.advance(at_s)
        found = read_node(node, sources=Sources(sys=fake.sysfs_root, kernel_log=Path("/dev/null")))
    return found.model_copy(update={"host": host, "num_torch_devices": len(found.gpus)})


def one(checks: list[Check], name: str) -> Check:
    """The check of that name."""
    (found,) = [check for check in checks if check.name == name]
    return found
