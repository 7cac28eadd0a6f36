"""What the workflow is asked for: `config/config.yaml`, Snakemake's own configuration file."""

from triplepoint.config.base import Strict


class Selection(Strict):
    """The part of the configuration that one `snakemake` works on; each key can be set with `--config`."""

    studies: tuple[str, ...] | None = None
    """Studies to run, files in `config/studies/`. None: all."""
    clusters: tuple[str, ...] | None = None
    """Clusters this machine can reach; points on others are left out. None: all."""
