"""The folder of configuration files: finds sections by name and reads each file once."""

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from triplepoint.config.base import NAME_EXPECTED, NAME_PATTERN, Strict, parse
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.contents import Digests
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.gpu_names import find_gpu
from triplepoint.config.model import ModelConfig
from triplepoint.config.study import Study
from triplepoint.config.yaml_file import check_name, read, read_yaml
from triplepoint.errors import UserError, nearest

Named = TypeVar("Named", ModelConfig, ClusterConfig, GpuConfig)

_NOT_TAKEN = frozenset({"also_called", "is_usual", "chassis", "idle_power", "slowdown_temperature", "pcie_bandwidth"})
"""Keys of a GPU type that another one like it does not have."""


class Catalogue:
    """Models, clusters, GPUs and studies in a configuration folder, read when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        """Use the configuration in `folder`, such as `config/`."""
        self.folder = folder
        """Folder of the configuration."""
        self._read: dict[tuple[str, str], Strict] = {}
        self._listed: dict[str, list[str]] = {}
        self.digests = Digests()
        """Contents of the files that points name."""

    @cached_property
    def studies(self) -> list[str]:
        """Names of all studies, sorted."""
        return self._names("studies")

    def study(self, name: str) -> Study:
        """Return a study. Raises `UserError` naming the nearest if there is none, or its file if that is wrong."""
        if ("studies", name) not in self._read:
            self._require(name, "studies", "study", None)
            self._read["studies", name] = read(Study, self.path_of_study(name))
        known = self._read["studies", name]
        assert isinstance(known, Study)
        return known

    def path_of_study(self, name: str) -> Path:
        """Return the file of a study, for errors."""
        return self.folder / "studies" / f"{name}.yaml"

    def model(self, name: str, where: str | Path | None = None) -> ModelConfig:
        """Return a model; `where` it is named, for errors. Raises `UserError` as `study` does."""
        return self._section(ModelConfig, "models", "model", name, where)

    def cluster(self, name: str, where: str | Path | None = None) -> ClusterConfig:
        """Return a cluster; `where` it is named, for errors. Raises `UserError` as `study` does."""
        return self._section(ClusterConfig, "clusters", "cluster", name, where)

    def gpu(self, name: str, where: str | Path | None = None) -> GpuConfig:
        """Return a GPU type; `where` it is named, for errors. Raises `UserError` as `study` does."""
        return self._section(GpuConfig, "gpus", "gpu", name, where)

    def gpu_of(self, cluster: ClusterConfig) -> GpuConfig | None:
        """Return the GPU type of a cluster, in the chassis that the cluster names; None on cpu."""
        if cluster.gpu is None:
            return None
        gpu = self.gpu(cluster.gpu, f"{self.folder}/clusters/{cluster.name}.yaml")
        return gpu.model_copy(update={"chassis": cluster.chassis}) if cluster.chassis else gpu

    def _section(self, section: type[Named], folder: str, word: str, name: str, where: str | Path | None) -> Named:
        if (folder, name) not in self._read:
            self._require(name, folder, word, where)
            path = self.folder / folder / f"{name}.yaml"
            self._read[folder, name] = check_name(parse(section, self._completed(section, path), path), path)
        known = self._read[folder, name]
        assert isinstance(known, section)
        return known

    def _completed(self, section: type[Named], path: Path) -> dict[str, Any]:
        """Return what a file holds, with what it leaves out taken from the one it is like."""
        content = read_yaml(path)
        if section is ClusterConfig and isinstance(spelled := content.get("gpu"), str):
            content["gpu"] = self._gpu_name(spelled, path)
        like = content.get("like")
        if "like" not in section.model_fields or not isinstance(like, str):
            return content
        self._require(like, path.parent.name, path.parent.name.removesuffix("s"), path)
        other = self._completed(section, path.with_stem(like)) if like != path.stem else {"like": like}
        if further := other.get("like"):
            raise UserError(f"{path}: like: {like} is itself like {further}; write like: {further}")
        left_out = _NOT_TAKEN if section is GpuConfig else frozenset()
        return {key: value for key, value in other.items() if key not in left_out} | content

    @cached_property
    def gpus(self) -> dict[str, GpuConfig]:
        """All GPU types by name."""
        return {name: self.gpu(name) for name in self._names("gpus")}

    def _gpu_name(self, spelled: str, where: Path) -> str:
        """Return the name of the GPU type that is meant: of a file, or spelled as people write it."""
        if (self.folder / "gpus" / f"{spelled}.yaml").is_file():
            return spelled
        try:
            return find_gpu(spelled, self.gpus).name
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def _require(self, name: str, folder: str, word: str, where: str | Path | None) -> None:
        if name in self._listed.get(folder, ()):
            return
        known = self._names(folder)
        if name not in known:
            place = f"{where}: " if where else ""
            raise UserError(f"{place}unknown {word} {name!r} in {self.folder / folder}{_hint(name, known)}")

    def _names(self, folder: str) -> list[str]:
        paths = sorted((self.folder / folder).glob("*.yaml"))
        for path in paths:
            # Names reach shells and become parts of file names.
            if not re.fullmatch(NAME_PATTERN, path.stem):
                raise UserError(f"{str(path)!r}: {NAME_EXPECTED} in front of .yaml, found {len(path.stem)}; rename it")
        self._listed[folder] = [path.stem for path in paths]
        return self._listed[folder]


def _hint(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) if known else " (no YAML file is there; is this the folder of the configuration?)"
