"""What is known of a job that something else started: settings that its owner names, and the point they come to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Devices, Size, parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu_names import AmbiguousGpuError, UnknownGpuError, read_gpu
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import SETTINGS, Engine, Point, PointCluster
from triplepoint.config.study import Settings, make_points
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError
from triplepoint.units import counted

DEGREES = ("tp", "pp", "cp", "dp", "ep", "vp")
"""Degrees of a layout. Where one is named the others are 1, as in a study, and dp what is left."""

FROM_RECORDING = ("steps", "trace_ranks", "repeats", "telemetry_period_s")
"""Settings that a recording tells, or that are no part of what is described."""


class Description(Settings):
    """What its owner says of a job: settings of a study's point under the same keys, and what it ran on.

    A setting that is not named is unknown, not at its default; only the task is pre-training unless it is named.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = "job"
    """What the job is called where its model is not known."""
    model: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None  # type: ignore[assignment]
    """Model, a file in `config/models/`. None: not known."""
    cluster: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None  # type: ignore[assignment]
    """Cluster, a file in `config/clusters/`: network, cooling and limits of its nodes. None: not known."""
    global_batch_size: Size | None = None  # type: ignore[assignment]
    """Sequences per step. None: not known."""
    engine: Engine | None = None  # type: ignore[assignment]
    """What trained: its stack is behind the prediction. None: not known."""
    device: Literal["cpu", "cuda", "rocm"] | None = None
    """What its ranks computed on. None: GPUs of the make that telemetry found, else the CPU."""
    gpu: str | None = None
    """GPU type, as people write it. None: as telemetry names it."""
    gpus_per_node: Devices | None = None
    """Ranks on each node. None: the most GPUs that telemetry found on one."""

    @model_validator(mode="after")
    def _check(self) -> "Description":
        if named := [name for name in FROM_RECORDING if name in self.model_fields_set]:
            raise ValueError(f"{named[0]} cannot be described; leave it out")
        return self

    @property
    def known(self) -> frozenset[str]:
        """Settings, and `model`, that are known."""
        named = {name for name in self.model_fields_set if getattr(self, name) is not None}
        if named & set(DEGREES):
            named |= set(DEGREES) | {"pipeline_layers"}
        return frozenset(named | {"task"})


def read_description(path: Path | None, options: dict[str, Any], catalogue: Catalogue | None) -> Description:
    """Return what a YAML file and options of a command line say of a job.

    Args:
        path: The file; None where there is none.
        options: Settings that go before the file's.
        catalogue: The configuration, for models and clusters that are named; None where there is none.

    Raises:
        UserError: If a key or a value is wrong, or a model, a cluster or a GPU is not known.
    """
    where = path or "description of the job"
    described = parse(Description, (read_yaml(path) if path else {}) | options, where)
    if catalogue is None:
        for kind in ("model", "cluster"):
            if getattr(described, kind):
                raise UserError(
                    f"{where}: {kind} {getattr(described, kind)!r} is a file of Triplepoint's configuration, and there "
                    "is no such folder; name it with --config CLONE/config"
                )
        return described
    if described.model:
        catalogue.model(described.model, where)
    if described.cluster:
        catalogue.cluster(described.cluster, where)
    if described.gpu:
        find_type(described.gpu, catalogue)
    return described


def find_type(product: str, catalogue: Catalogue, assumed: str = "") -> str:
    """Return the GPU type of `config/gpus/` that a name means, by what is assumed where it does not tell.

    Raises:
        UserError: If it is none of them, or could be several.
    """
    gpus = {path.stem: catalogue.gpu(path.stem) for path in (catalogue.folder / "gpus").glob("*.yaml")}
    return read_gpu(product, gpus, assumed=assumed)[0].name


def type_of(products: Sequence[str | None], catalogue: Catalogue | None) -> str | None:
    """Return the GPU type of some GPUs by the names their driver gives; None where it is not known, or not one."""
    names = {product for product in products if product}
    if catalogue is None or len(names) != 1:
        return None
    try:
        # Drivers name the form factor of cards (H200 NVL, H100 PCIe); a name without one is the module's.
        return find_type(names.pop(), catalogue, assumed="sxm")
    except (UnknownGpuError, AmbiguousGpuError):
        return None


def point_of(
    described: Description, place: PointCluster, num_gpus: int, catalogue: Catalogue | None, **recorded: Any
) -> Point:
    """Return the point of a recorded run.

    Args:
        described: What is known of the job.
        place: Where it ran.
        num_gpus: World size.
        catalogue: The configuration; None where there is none.
        recorded: Fields of the point that the recording tells: `recorded`, a `Recorded` without what is not known, and
            `steps`, `trace_ranks`, `telemetry_period_s`.

    Raises:
        UserError: If the degrees do not make up the world size, or another number of GPUs is described.
    """
    model = _no_model(described.name)
    if described.model and catalogue is not None:
        model = catalogue.model(described.model)
    kept = {name: getattr(described, name) for name in Settings.model_fields if name in described.known}
    kept = {name: value for name, value in kept.items() if name not in ("model", "cluster", "num_gpus")}
    settings = Settings.model_construct(
        **{name: field.get_default() for name, field in Settings.model_fields.items()}
        | {"model": model.name, "cluster": place.name, "num_gpus": num_gpus, "global_batch_size": 1}
        | {"engine": "native"}
        | kept
    )
    (point,) = make_points(settings, settings.apply(model), _Place(place, num_gpus))  # type: ignore[arg-type]
    source = recorded.pop("recorded")
    unknown = tuple(name for name in ("model", *SETTINGS) if name not in described.known)
    return point.model_copy(update={**recorded, "recorded": source.model_copy(update={"unknown": unknown})})


class _Place:
    """The keys of a cluster that points are made with."""

    def __init__(self, place: PointCluster, num_gpus: int) -> None:
        self.name, self.device, self.gpu = place.name, place.device, place.gpu
        self.gpus_per_node, self.num_gpus = place.gpus_per_node, num_gpus


def check_size(described: Description, num_gpus: int) -> None:
    """Raise `UserError` if what is described and the number of ranks that were recorded contradict each other."""
    if described.num_gpus not in (None, num_gpus):
        raise UserError(
            f"the description has num_gpus {described.num_gpus}, the recording {num_gpus}; leave num_gpus out, or "
            "record all nodes"
        )
    if not described.known & set(DEGREES):
        return
    product = described.tp * described.pp * described.cp * (described.dp or 1)
    ranks = counted(num_gpus, "rank")
    if described.dp is None and num_gpus % product:
        raise UserError(
            f"the description has tp*pp*cp = {described.tp}*{described.pp}*{described.cp} = {product}, which does not "
            f"divide the {ranks} of the recording; correct tp, pp or cp, or record all nodes"
        )
    if described.dp is not None and product != num_gpus:
        raise UserError(
            f"the job is described with tp*pp*cp*dp = {described.tp}*{described.pp}*{described.cp}*{described.dp} = "
            f"{product}, its recording has {ranks}; name the degrees it has, or record all nodes"
        )


def _no_model(name: str) -> ModelConfig:
    """Return what stands for a model nobody knows; `Recorded.unknown` says that it has no meaning."""
    return ModelConfig(
        name=name,
        source="none: the model of this job is not known",
        num_layers=1,
        hidden_size=1,
        ffn_hidden_size=1,
        num_attention_heads=1,
        num_query_groups=1,
        vocab_size=1,
        sequence_length=1,
        activation="gelu",
        normalization="layernorm",
        position_embedding="none",
    )
