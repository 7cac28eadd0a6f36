"""What the workflow is asked for: `config/config.yaml`, Snakemake's own configuration file."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read


def _one_or_more(found: Any) -> Any:
    # `--config clusters=h200x32` gives a plain text where the file gives a list.
    return (found,) if isinstance(found, str) else found


Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]


class Selection(Strict):
    """The part of the configuration that one `snakemake` works on; each key can be set with `--config`."""

    studies: Names | None = None
    """Studies to run, files in `config/studies/`. None: all."""
    clusters: Names | None = None
    """Clusters this machine can reach; points on others are left out. None: all."""
    simulated: Names = ()
    """Clusters to simulate, but for those named in `clusters`: their points run on the engine `simulated`, and one rank
    of each of up to four pipeline stages is traced."""
    ranks_per_part: Annotated[int, Field(gt=0, le=1_000_000, strict=True)] = 32
    """Ranks whose traces one `parse` job takes, side by side where it has the cores."""
    trace_rules: str | None = None
    """YAML file of rules that go before the project's own in sorting kernels into classes, see `extending.md`. None:
    none."""


def read_selection(config: Path) -> Selection:
    """Return what `config.yaml` in a folder of configuration says; every point as it is where there is none.

    Raises:
        UserError: If the file is wrong.
    """
    path = config / "config.yaml"
    return read(Selection, path) if path.exists() else Selection()
