"""Process groups of a job by the names collectives have."""

from triplepoint.config.mesh import Group
from triplepoint.simulate.job import Job


def group_of(job: Job, name: str) -> Group:
    """Return the shape of a process group of a job; names and errors are those of `RankMesh.group`."""
    return job.mesh.group(name)
