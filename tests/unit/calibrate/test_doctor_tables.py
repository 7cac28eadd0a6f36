"""Links and kernels fitted to tables as the doctor writes them, of machines that are known."""

import shutil
from pathlib import Path

import pytest

from triplepoint.calibrate.collectives import LinkParameters
from triplepoint.calibrate.kernels import KernelTimes
from triplepoint.calibrate.protocol import calibrate
from triplepoint.config.catalogue import Catalogue
from triplepoint.doctor.diagnosis import write_collectives, write_kernels
from triplepoint.doctor.measure import CollectiveRow, KernelRow
from triplepoint.errors import UserError
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.collectives.times import CollectiveModel
from triplepoint.simulate.fabric import Fabric, Group, fabric_of
from triplepoint.simulate.kernels.parameters import read_kernels
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.operations import Kernel

pytestmark = pytest.mark.timeout(900)
"""A fit or a search of a minute takes many beside other tests."""

CATALOGUE = Catalogue(Path("config"))
H200X32 = CATALOGUE.cluster("h200x32").model_copy(update={"network_link": None})
H200 = CATALOGUE.gpu("h200")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
SIZES = [1024 << (4 * power) for power in range(5)]
TRUTH = {
    "nvlink4": {"launch_s": 6e-5, "efficiency": 0.5, "exchange_efficiency": 0.4},
    "infiniband": {"efficiency": 0.6},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A copy of the configuration, elsewhere."""
    return shutil.copytree("config", tmp_path / "config")


@pytest.fixture
def table(config: Path, tmp_path: Path) -> Path:
    """Collectives of a cluster whose links are slower than their kind, timed by the model itself."""
    links = {name: load_link(name, config).model_copy(update=changes) for name, changes in TRUTH.items()}
    levels = fabric_of(H200X32, H200, config).levels
    # A level carries its hop from the link it was made of; those of the truth have the same.
    model = CollectiveModel(Fabric(levels), links)
    rows = [
        CollectiveRow(
            level="node" if size <= 8 else "network", kind=kind, num_gpus=size, num_bytes=num_bytes,
            time_s=model.time_s(kind, num_bytes, Group(size, 1)), host="n0",
        )
        for size in (8, 32)
        for kind in KINDS
        for num_bytes in SIZES
    ]  # fmt: skip
    path = tmp_path / "collectives.csv"
    write_collectives(rows, "h200x32", "doctor-test", path)
    return path


def test_calibrate_links_finds_the_links_and_the_simulator_takes_them(config: Path, table: Path) -> None:
    told = calibrate(LinkParameters(table, config))
    assert f"set scale_up_link: h200x32-node in {config}/clusters/h200x32.yaml" in "\n".join(told)
    node, network = load_link("h200x32-node", config), load_link("h200x32-network", config)
    assert node.exchange_efficiency == pytest.approx(0.4, rel=0.1)
    assert network.efficiency == pytest.approx(0.6, rel=0.1)
    own = H200X32.model_copy(update={"scale_up_link": node.name, "network_link": network.name})
    fabric = fabric_of(own, H200, config)
    assert [level.kind for level in fabric.levels] == ["h200x32-node", "h200x32-network"]
    # An all-reduce of 256 MiB over all GPUs takes 1 / 0.6 of the time that InfiniBand's 0.96 gives: 1.6 times.
    usual, found = (
        CollectiveModel.load(levels, config).time_s("all_reduce", 1 << 28, Group(32, 1))
        for levels in (fabric_of(H200X32, H200, config), fabric)
    )
    assert found == pytest.approx(1.6 * usual, rel=0.1)


@pytest.mark.parametrize("fabrics", [("h200x32-node", "h100x64-node"), ("h200x32-rack",), ()])
def test_calibrate_links_of_no_single_cluster_is_refused(
    config: Path, tmp_path: Path, fabrics: tuple[str, ...]
) -> None:
    path = tmp_path / "wrong.csv"
    rows = [f"{fabric},all_reduce,8,1024,25,us,,me" for fabric in fabrics]
    path.write_text("\n".join(["fabric,kind,num_gpus,num_bytes,value,unit,read_error,source", *rows]))
    with pytest.raises(UserError, match="expected NAME-node and NAME-network of one cluster"):
        calibrate(LinkParameters(path, Path("config")))


def test_calibrate_kernels_finds_a_slower_gpu(config: Path, tmp_path: Path) -> None:
    model = KernelModel.load(H200, config)
    rows = []
    for m, n, k in [(1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (2048, 12288, 4096), (512, 8192, 8192)]:
        kernel = Kernel("gemm", "forward", 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n), (m, n, k), "bf16")
        for device in range(8):
            time_s = model.time_s(kernel) / 0.8 * (9.0 if device == 7 else 1.0)  # one of eight broken: the median holds
            rows.append(KernelRow(
                cls="gemm", precision="bf16", shape=(m, n, k), flops=kernel.flops, num_bytes=kernel.num_bytes,
                time_s=time_s, host="n0", device=device,
            ))  # fmt: skip
    path = tmp_path / "kernels.csv"
    write_kernels(rows, "h200", "cublas", "doctor-test", path)
    (told,) = calibrate(KernelTimes(path, config))
    assert "bf16 GEMMs fitted to 6 rows of doctor-test" in told
    large = Kernel("gemm", "forward", 2.0 * 8192**3, 6.0 * 8192**2, (8192,) * 3, "bf16")
    read_kernels.cache_clear()
    assert KernelModel.load(H200, config).time_s(large) == pytest.approx(model.time_s(large) / 0.8, rel=0.05)
