"""Reads the manifests of a plan's runs; a run without a result is refused by name."""

from pathlib import Path

from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest


def read_outcomes(plan: Plan, runs: Path) -> dict[str, Manifest]:
    """Return the manifest of every valid run of `plan`, by run id.

    Args:
        plan: The selection.
        runs: Folder with one folder per run.

    Raises:
        UserError: If a run was not launched, was measured for another point, or failed.
    """
    paths = {entry.run: runs / entry.run / "raw" / "manifest.json" for entry in plan.valid}
    missing = [run for run, path in paths.items() if not path.is_file()]
    if missing:
        more = f" (and {len(missing) - 1} more runs without one)" if missing[1:] else ""
        raise UserError(
            f"run {missing[0]}: no manifest at {paths[missing[0]]}{more}; it was not launched or did not finish: "
            "run 'snakemake all'"
        )
    outcomes = {}
    for entry in plan.valid:
        manifest = read_manifest(paths[entry.run])
        _check(entry, manifest)
        outcomes[entry.run] = manifest
    return outcomes


def explain(manifest: Manifest) -> str:
    """Return in one line why a run is not ok: what was said, and by which rank on which host."""
    evidence = manifest.evidence
    if evidence is None:
        return f"{manifest.status}, no evidence was recorded"
    who = "gang" if evidence.rank is None else f"rank {evidence.rank}"
    return " ".join(f"{who} on {evidence.host}: {evidence.message}".split())


def _check(entry: PlanEntry, manifest: Manifest) -> None:
    if manifest.digest != entry.planned.digest:
        raise UserError(
            f"run {entry.run}: measured for another point (digest {manifest.digest[:12]}, planned "
            f"{entry.planned.digest[:12]}); launch it again: run 'snakemake all'"
        )
    if not manifest.is_result:
        raise UserError(
            f"run {entry.run}: {manifest.status}: {explain(manifest)}; that is a failure, not a result: launch it again"
        )
