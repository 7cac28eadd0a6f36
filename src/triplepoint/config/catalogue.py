"""Catalogue of a configuration folder: looks up models, clusters, GPU types and studies by name."""

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

_NOT_INHERITED = frozenset(
    {"also_called", "is_usual", "chassis", "idle_power", "slowdown_temperature", "pcie_bandwidth"}
)
"""Keys of a GPU type that a type with `like` does not take over."""


class Catalogue:
    """Models, clusters, GPUs and studies of a configuration folder; each file is read once, at its first use."""

    def __init__(self, folder: Path) -> None:
        """Use the configuration in `folder`, such as `config/`."""
        self.folder = folder
        """Folder of the configuration."""
        self._sections: dict[tuple[str, str], Strict] = {}
        self._names_in: dict[str, list[str]] = {}
        self.digests = Digests()
        """Digests of the files that points name, such as corpora."""

    @cached_property
    def studies(self) -> list[str]:
        """Names of all studies, sorted."""
        return self._names("studies")

    def study(self, name: str) -> Study:
        """Return a study.

        Raises:
            UserError: If there is none of that name (the error names the nearest), or its file is invalid.
        """
        if ("studies", name) not in self._sections:
            self._require(name, "studies", "study", None)
            self._sections["studies", name] = read(Study, self.path_of_study(name))
        study = self._sections["studies", name]
        assert isinstance(study, Study)
        return study

    def path_of_study(self, name: str) -> Path:
        """Return the path of a study's file."""
        return self.folder / "studies" / f"{name}.yaml"

    def model(self, name: str, where: str | Path | None = None) -> ModelConfig:
        """Return a model; `where` is the file that names it, for errors. Raises `UserError` as `study`."""
        return self._section(ModelConfig, "models", "model", name, where)

    def cluster(self, name: str, where: str | Path | None = None) -> ClusterConfig:
        """Return a cluster; `where` is the file that names it, for errors. Raises `UserError` as `study`."""
        return self._section(ClusterConfig, "clusters", "cluster", name, where)

    def gpu(self, name: str, where: str | Path | None = None) -> GpuConfig:
        """Return a GPU type; `where` is the file that names it, for errors. Raises `UserError` as `study`."""
        return self._section(GpuConfig, "gpus", "gpu", name, where)

    def gpu_of(self, cluster: ClusterConfig) -> GpuConfig | None:
        """Return the GPU type of a cluster, with the chassis that the cluster names; None on cpu."""
        if cluster.gpu is None:
            return None
        gpu = self.gpu(cluster.gpu, f"{self.folder}/clusters/{cluster.name}.yaml")
        return gpu.model_copy(update={"chassis": cluster.chassis}) if cluster.chassis else gpu

    def _section(self, section: type[Named], folder: str, word: str, name: str, where: str | Path | None) -> Named:
        if (folder, name) not in self._sections:
            self._require(name, folder, word, where)
            path = self.folder / folder / f"{name}.yaml"
            self._sections[folder, name] = check_name(parse(section, self._with_inherited(section, path), path), path)
        content = self._sections[folder, name]
        assert isinstance(content, section)
        return content

    def _with_inherited(self, section: type[Named], path: Path) -> dict[str, Any]:
        """Return the content of a file, with missing keys taken from the file that its key `like` names."""
        content = read_yaml(path)
        if section is ClusterConfig and isinstance(spelled := content.get("gpu"), str):
            content["gpu"] = self._gpu_name(spelled, path)
        like = content.get("like")
        if "like" not in section.model_fields or not isinstance(like, str):
            return content
        self._require(like, path.parent.name, path.parent.name.removesuffix("s"), path)
        base = self._with_inherited(section, path.with_stem(like)) if like != path.stem else {"like": like}
        if base_of_base := base.get("like"):
            raise UserError(f"{path}: like: {like} is itself like {base_of_base}; write like: {base_of_base}")
        not_inherited = _NOT_INHERITED if section is GpuConfig else frozenset()
        return {key: value for key, value in base.items() if key not in not_inherited} | content

    @cached_property
    def gpus(self) -> dict[str, GpuConfig]:
        """All GPU types by name."""
        return {name: self.gpu(name) for name in self._names("gpus")}

    def _gpu_name(self, spelled: str, where: Path) -> str:
        """Return the name of a GPU type, given as a file name or spelled as people write it."""
        if (self.folder / "gpus" / f"{spelled}.yaml").is_file():
            return spelled
        try:
            return find_gpu(spelled, self.gpus).name
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def _require(self, name: str, folder: str, word: str, where: str | Path | None) -> None:
        """Raise `UserError` if a folder has no file of that name."""
        if name in self._names_in.get(folder, ()):
            return
        known = self._names(folder)
        if name not in known:
            place = f"{where}: " if where else ""
            raise UserError(f"{place}unknown {word} {name!r} in {self.folder / folder}{_hint(name, known)}")

    def _names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        for path in sorted((self.folder / folder).glob("*.yml")):
            raise UserError(f"{path}: names of these files end in .yaml, so this one would not be read; rename it")
        paths = sorted((self.folder / folder).glob("*.yaml"))
        for path in paths:
            # Names reach shells and become parts of file names.
            if not re.fullmatch(NAME_PATTERN, path.stem):
                odd = next(iter(re.findall(r"[^a-z0-9.-]|^[.-]", path.stem)), None)
                found = f"found {len(path.stem)}" if odd is None else f"a letter or digit first, found {odd!r}"
                raise UserError(f"{str(path)!r}: {NAME_EXPECTED} in front of .yaml, {found}; rename it")
        self._names_in[folder] = [path.stem for path in paths]
        return self._names_in[folder]


def _hint(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) if known else " (no YAML file is there; is this the folder of the configuration?)"
