"""Interface of the Snakemake rules to the package: the selected runs, file lists, patterns, digests, outdated files.

Snakemake decides what to run from the times, parameters and checksums of existing files, and makes a missing file only
if it is a target or a running job needs it. It therefore misses three cases, which `Binding.outdated_files` and
`Binding.outdated_rules` cover: a missing table behind an existing figure; an empty file; and the loss of Snakemake's
own records, without which it detects no change.
"""

import atexit
import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from triplepoint import figures
from triplepoint.claims import claim_results
from triplepoint.config.base import parse
from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.config.study import Selection
from triplepoint.errors import UserError, explain_os_error, refuse
from triplepoint.figures.selection import figures_of, require_selected
from triplepoint.files import load_json
from triplepoint.plan import select, write_plan
from triplepoint.source_files import source_files

RUN_PATTERN = "[^/]+"
"""Regular expression of any run id. For a run that is not planned, the stage itself says that there is no such run."""

CHEAP_RULES = (
    "simulate",
    "telemetry",
    "parse",
    "trace",
    "aggregate",
    "claims",
    "whatif",
    "project",
    "figure",
    "report",
)
"""All rules except `launch`, which costs GPU hours."""

TRACE_TABLES = ("kernels", "intervals", "categories", "collectives", "ranks", "critical_path", "timeline")
"""Tables of a run that `triplepoint trace` writes."""

FIGURE_FORMATS = ("pdf", "svg", "png", "csv")
"""Files of a figure: three drawings, and the plotted numbers."""

_CONFIG = Path("config")
_RESULTS = Path("results")
_TABLES = _RESULTS / "tables"
_SNAKEMAKE_RECORDS = Path(".snakemake/metadata")
"""Folder in which Snakemake records the parameters and inputs that each file was made with."""
_SNAKEMAKE = ("snakemake", "__main__.py")
"""Names of Snakemake's program, as a command and as a module."""
_DRY_RUN = re.compile(r"--dry-?run|-[a-zA-Z]*n[a-zA-Z]*")
_MAX_REPORT_NAME = 80
"""Longest name of a report; a longer one is cut and ends in a digest. Unit: character."""


def bind(
    config: Mapping[str, Any], base: str, figure_names: Sequence[str] = (), pages: Sequence[str] = ()
) -> "Binding":
    """Return the binding of the rules, or end the process with one line and status 2 if the configuration is wrong.

    A dry run also starts `triplepoint plan` in another process, whose summary of the cost is printed at the end.

    Args:
        config: Snakemake's configuration.
        base: Folder of the Snakefile.
        figure_names: Figures that the command line names.
        pages: Front pages of reports that the command line names.
    """
    # Rules call `triplepoint`, which is beside the interpreter, even if the environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        selection = parse(Selection, dict(config), "config/config.yaml or --config")
        if selection.trace_rules is not None and not Path(selection.trace_rules).is_file():
            raise UserError(f"config/config.yaml or --config: trace_rules: no file {selection.trace_rules!r}")
        plan = select(_CONFIG, selection.studies, selection.clusters, selection.simulated, _RESULTS)
        require_selected(figure_names, plan, _CONFIG)
        binding = Binding(selection, Path(base), plan)
        binding.require_pages(pages)
    except UserError as error:
        refuse(error)
    figures_of_runs = [name for name in figure_names if not figures.spec_of(name).simulated]
    if is_dry_run(sys.argv) and (figures_of_runs or not figure_names):
        budget = f"--max-gpu-hours {selection.max_gpu_hours}"
        start_cost_summary(
            " ".join([binding.plan_arguments, budget, *(f"--figure {name}" for name in figures_of_runs)])
        )
    return binding


class Binding:
    """The selected studies as the rules need them: runs, inputs, outputs, parameters and wildcard patterns.

    The names of tables repeat `tables.results` and `tables.studies`, because importing those takes 0.1 s.
    """

    tables = (
        "points", "gpus", "nodes", "traffic", "step_energy", "step_samples", "job_power", "phases", "breakdown",
        "kernels", "telemetry_checks", "published", "timeline",
    )  # fmt: skip
    """Tables of each study."""
    parquet_only = ("breakdown", "job_power", "step_samples", "timeline")
    """Tables of a study without a CSV."""
    over_all = ("claims",)
    """Tables that exist once for all studies together."""
    trace_products = (*(f"{name}.parquet" for name in TRACE_TABLES), "perfetto.json.gz")
    """Files that `trace` writes for a run."""
    products = ("raw/manifest.json", "telemetry.parquet", *trace_products)
    """Files of a finished run, below its folder."""
    aggregate_reads = (
        "raw/manifest.json",
        *(f"{name}.parquet" for name in ("telemetry", "kernels", "categories", "intervals", "timeline")),
    )
    """Files of a run that `aggregate` reads."""
    aggregate_inputs = ("raw/manifest.json", "telemetry.parquet", "kernels.parquet")
    """Inputs of rule `aggregate` for each run, one of each rule that writes them. Each further file of a thousand runs
    costs Snakemake a quarter of a second; `outdated_files` checks the others."""

    def __init__(self, selection: Selection, base: Path, plan: Plan) -> None:
        """Bind a selection.

        Args:
            selection: Selected studies and clusters.
            base: Folder of the Snakefile.
            plan: Plan of the selection.
        """
        self._selection = selection
        self._base = base
        self._plan = plan
        self._file_digests: dict[Path, str] = {}
        self._plans = {study: plan.of_study(study) for study in plan.studies}
        self.studies = plan.studies
        """Selected studies that have a point."""
        self.is_alone = selection.studies is not None
        """Whether the selection names studies. They then have a report of their own, and the results that need all
        studies stay as they are."""
        self.figures = figures_of(plan, self.is_alone)
        """Figures to make: `NAME` for one over several studies, `STUDY/NAME` for one of a single study."""
        self._num_nodes = {entry.run: entry.planned.point.num_nodes for entry in plan.valid}
        self._parts = {
            entry.run: _split_ranks(entry.planned.point.traced_ranks, selection.ranks_per_part) for entry in plan.valid
        }
        # Simulated traces are small: a job of its own costs more than parsing them.
        self._parsed_by_trace = {
            entry.run
            for entry in plan.valid
            if entry.planned.point.engine == "simulated" and len(self._parts[entry.run]) == 1
        }

    # Runs

    @property
    def runs(self) -> list[str]:
        """Ids of the valid runs, in the order of the studies."""
        return [entry.run for entry in self._plan.valid]

    @property
    def simulated_pattern(self) -> str:
        """Regular expression of the ids of runs that are simulated."""
        return self._pattern(lambda entry: entry.planned.point.engine == "simulated")

    @property
    def launched_pattern(self) -> str:
        """Regular expression of the ids of runs that are launched: neither simulated nor recorded."""
        return self._pattern(
            lambda entry: entry.planned.point.engine != "simulated" and entry.planned.point.recorded is None
        )

    def _pattern(self, includes: Callable[[PlanEntry], bool]) -> str:
        """Return a regular expression of some run ids, as short as possible: Snakemake matches it for every file."""
        runs = [entry.run for entry in self._plan.valid if includes(entry)]
        if runs and len(runs) == len(self._plan.valid):
            return RUN_PATTERN
        return _any_of(runs)

    def num_nodes(self, run: str) -> int:
        """Return the number of nodes of a run."""
        return self._num_nodes[run]

    def parts(self, run: str) -> list[str]:
        """Return the parts into which `parse` jobs divide the traced ranks of a run, each named `FIRST-LAST`.

        Empty if rule `trace` parses them itself.
        """
        return [] if run in self._parsed_by_trace else list(self._parts.get(run, ()))

    def num_traces(self, run: str, part: str) -> int:
        """Return the number of traced ranks in a part."""
        return self._parts[run][part]

    @property
    def trace_rules(self) -> list[str]:
        """The user's file of classification rules; empty without one."""
        return [self._selection.trace_rules] if self._selection.trace_rules else []

    @property
    def trace_arguments(self) -> str:
        """Arguments of `triplepoint parse` that name the user's classification rules."""
        return " ".join(f"--rules {shlex.quote(path)}" for path in self.trace_rules)

    def trace_options(self, run: str) -> str:
        """Return the arguments with which `triplepoint trace` parses the traces itself; empty if `parse` does."""
        return f"--parse --jobs 1 {self.trace_arguments}".strip() if run in self._parsed_by_trace else ""

    # Tables

    @property
    def study_pattern(self) -> str:
        """Regular expression of the selected studies."""
        return _any_of(self.studies)

    @property
    def table_names(self) -> list[str]:
        """Names of the files that `aggregate` writes for a study."""
        with_csv = [table for table in self.tables if table not in self.parquet_only]
        return [*(f"{table}.parquet" for table in self.tables), *(f"{table}.csv" for table in with_csv), "plan.json"]

    @property
    def table_files(self) -> list[str]:
        """All files that `aggregate` writes."""
        return [file for study in self.studies for file in self._tables_of(study)]

    def _tables_of(self, study: str) -> list[str]:
        return [str(_TABLES / study / name) for name in self.table_names]

    def aggregate_input_files(self, study: str) -> list[str]:
        """Return the inputs of rule `aggregate` among the files of runs."""
        return self._files_of_runs(study, self.aggregate_inputs)

    def _files_of_runs(self, study: str, products: Iterable[str]) -> list[str]:
        runs = [entry.run for entry in self._plans[study].valid]
        return [f"{_RESULTS}/runs/{run}/{product}" for run in runs for product in products]

    @property
    def claim_tables(self) -> list[str]:
        """Files that `claims` writes."""
        return [str(_TABLES / f"{table}.{suffix}") for table in self.over_all for suffix in ("parquet", "csv")]

    @property
    def wanted_claim_tables(self) -> list[str]:
        """Claim tables to make: none if the selection names studies, because claims need all studies."""
        return [] if self.is_alone else self.claim_tables

    def tables_behind(self, names: Iterable[str], studies: Iterable[str] | None = None) -> list[str]:
        """Return the files of some tables.

        Args:
            names: Names of tables.
            studies: Studies whose tables are meant. None: all selected ones.
        """
        studies = self.studies if studies is None else studies
        common = [str(_TABLES / f"{name}.parquet") for name in names if name in self.over_all]
        of_study = [*(f"{name}.parquet" for name in names if name not in self.over_all), "plan.json"]
        return common + [str(_TABLES / study / name) for study in studies for name in of_study]

    # Figures and reports

    @property
    def figure_pattern(self) -> str:
        """Regular expression of all figures of the catalogue, with or without a selected study in front."""
        return f"(?:(?:{self.study_pattern})/)?(?:{'|'.join(figures.NAMES)})"

    def figure_tables(self, figure: str) -> list[str]:
        """Return the files that a figure is drawn from."""
        spec = figures.spec_of(figure)
        if spec.simulated:
            return [str(_RESULTS / f"{spec.simulated}.parquet")]
        return self.tables_behind(spec.tables, spec.studies)

    def question(self, figure: str) -> str:
        """Return the question that a figure answers."""
        return figures.spec_of(figure).question

    def caption(self, figure: str) -> str:
        """Return the caption of a figure."""
        return figures.caption(figure)

    @property
    def caption_files(self) -> list[str]:
        """Files with the captions of the figures."""
        names = dict.fromkeys(figures.spec_of(figure).name for figure in self.figures)
        return [str(figures.CAPTIONS / f"{name}.rst") for name in names]

    @property
    def report_name(self) -> str:
        """Front page of the report without its suffix: `report`, or `report-STUDY` if the selection names studies."""
        name = "-".join(["report", *(self.studies if self.is_alone else ())])
        if len(name) <= _MAX_REPORT_NAME:
            return name
        return f"{name[:_MAX_REPORT_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"

    @property
    def report_arguments(self) -> str:
        """Arguments of `triplepoint report`."""
        return f"--out {self.report_name}.html{' --alone' if self.is_alone else ''}"

    @property
    def report_tables(self) -> list[str]:
        """Tables behind the report. A report of named studies judges claims itself, so it needs no claim tables."""
        return self.tables_behind([*self.tables, *(() if self.is_alone else self.over_all)])

    def require_pages(self, pages: Iterable[str]) -> None:
        """Check that the selected studies make the given front pages of reports.

        Raises:
            UserError: If they do not; it names the command that makes the page.
        """
        known = {
            path.stem for folder in ("config/studies/*.yaml", "results/recorded/*.json") for path in Path().glob(folder)
        }
        for page in pages:
            if page == f"{self.report_name}.html":
                continue
            study = page.removeprefix("report-").removesuffix(".html")
            named = [study] if study in known else self.studies if self.is_alone else ()
            options = f" --config 'studies=[{','.join(named)}]'" if named else ""
            raise UserError(
                f"{page}: the report of the selected studies is {self.report_name}.html; make "
                f'{page if study in known else "it"} with "snakemake report{options}"'
            )

    # Configuration files and digests

    def config_pattern(self, kind: str) -> str:
        """Return a regular expression of the files in a folder of the configuration, `whatif` or `projection`."""
        return _any_of(sorted(path.stem for path in (_CONFIG / kind).glob("*.yaml")))

    def gpu_files(self, study: str) -> list[str]:
        """Return the files of the GPU types of a study: its tables depend on their peaks."""
        gpus = {entry.planned.point.cluster.gpu for entry in self._plans[study].entries} - {None}
        return [f"config/gpus/{gpu}.yaml" for gpu in sorted(filter(None, gpus))]

    @property
    def claim_files(self) -> list[str]:
        """Existing files with published claims and their figures."""
        folder = _CONFIG / "published"
        return sorted(str(path) for path in [*folder.glob("claims.yaml"), *folder.glob("figures/*.csv")])

    @property
    def sensor_files(self) -> list[str]:
        """Existing sensor cards and trials of the sampler's overhead: all tables depend on them."""
        return sorted(str(path) for path in (_RESULTS / "sensors").glob("*.json"))

    @cached_property
    def _plan_digests(self) -> dict[str, str]:
        return {study: plan.digest() for study, plan in self._plans.items()}

    def plan_digest(self, study: str) -> str:
        """Return the digest of the plan of a study, which is independent of the other selected studies."""
        return self._plan_digests[study]

    @property
    def plan_arguments(self) -> str:
        """The selection as arguments of `triplepoint plan`."""
        selected = self._selection.clusters
        clusters = ["--all-clusters"] if selected is None else [f"--cluster {name}" for name in selected]
        simulated = [f"--simulated {name}" for name in self._selection.simulated]
        return " ".join([*(self._selection.studies or ()), *clusters, *simulated])

    @property
    def machines_digest(self) -> str:
        """Digest of the configuration of machines and models of them, on which simulations depend."""
        kinds = ("gpus", "clusters", "kernels", "collectives", "calibration", "power", "heat")
        return self._digest_of_folders(kinds)

    @property
    def studies_digest(self) -> str:
        """Digest of the configuration of studies, LLMs and published values, on which comparisons depend."""
        return self._digest_of_folders(("studies", "models", "published"))

    def code_digest(self, stage: str) -> str:
        """Return a digest of the source files of `triplepoint STAGE`.

        Rules take it as a parameter. As inputs of every job, a hundred files cost Snakemake more than most jobs cost.
        """
        return self._digest_of(source_files(f"triplepoint.cli.{stage}"))

    def figure_code_digest(self, figure: str) -> str:
        """Return a digest of the source files of one figure."""
        module = figures.spec_of(figure).module
        return self._digest_of(source_files("triplepoint.figures.write") | source_files(module))

    def _digest_of_folders(self, kinds: Iterable[str]) -> str:
        return self._digest_of(path for kind in kinds for path in (_CONFIG / kind).rglob("*") if path.is_file())

    def _digest_of(self, files: Iterable[Path]) -> str:
        """Return a digest of names and contents of files; a file in the project counts by its path within it."""
        prefix = f"{self._base.resolve()}/"
        paths = {str(path).removeprefix(prefix): path for path in files}
        digest = hashlib.sha256()
        for name, path in sorted(paths.items()):
            if path not in self._file_digests:
                self._file_digests[path] = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name} {self._file_digests[path]}\n".encode())
        return digest.hexdigest()[:16]

    # Start of a workflow

    def write_plan(self) -> None:
        """Claim the results and write `plan.json` and all `point.json`, or end with one line and status 2.

        This process keeps the claim until it ends. Its jobs may write; other workflows and commands may not.
        """
        try:
            atexit.register(claim_results(_RESULTS).acquire_or_refuse().release)
            write_plan(self._plan, _RESULTS)
        except (OSError, UserError) as error:
            line = explain_os_error(error) if isinstance(error, OSError) else None
            refuse(line or error)

    def check_budget(self, runs: Sequence[str]) -> None:
        """End the process with one line and status 2 if launches exceed the budget and the selection names no study.

        Args:
            runs: Runs that are about to be launched.
        """
        if not runs or self.is_alone:
            return
        from triplepoint.plan_cost import over_budget, plan_cost

        launched = set(runs)
        plan = Plan(entries=tuple(entry for entry in self._plan.valid if entry.run in launched))
        line = over_budget(plan_cost(plan, _RESULTS, _CONFIG), self._selection.max_gpu_hours)
        if line is not None:
            refuse(line)

    def outdated_files(self) -> set[str]:
        """Return files to make again that Snakemake would take for up to date."""
        outdated = {
            file
            for entry in self._plan.valid
            for file in _outdated_files_of_run(f"{_RESULTS}/runs/{entry.run}", entry.planned.digest)
        }
        for study, plan in self._plans.items():
            tables = self._tables_of(study)
            needed = tables + self._files_of_runs(study, self.aggregate_reads)
            if not _is_plan(_TABLES / study / "plan.json", plan) or not all(map(_has_content, needed)):
                outdated.update(tables)
        if not all(map(_has_content, self.wanted_claim_tables)):
            outdated.update(self.wanted_claim_tables)
        drawn = [f"figs/{figure}.{suffix}" for figure in self.figures for suffix in FIGURE_FORMATS]
        outdated.update(filter(_is_empty, [*drawn, f"{self.report_name}.html"]))
        return outdated

    @property
    def outdated_rules(self) -> tuple[str, ...]:
        """Rules of which every job runs again: all cheap ones if there are tables, but no records of Snakemake."""
        has_tables = any(Path(path).exists() for path in self.table_files)
        return CHEAP_RULES if has_tables and not any(_SNAKEMAKE_RECORDS.glob("*")) else ()


def _any_of(names: Iterable[str]) -> str:
    """Return a regular expression of some names, without any one that never matches."""
    return "|".join(map(re.escape, names)) or "(?!)"


def _split_ranks(ranks: list[int], size: int) -> dict[str, int]:
    """Return the number of ranks of each part, by the name of the part, `FIRST-LAST`."""
    parts = [ranks[begin : begin + size] for begin in range(0, len(ranks), size)]
    return {f"{part[0]}-{part[-1]}": len(part) for part in parts}


def _outdated_files_of_run(folder: str, digest: str) -> set[str]:
    """Return the files of a run to make again.

    Args:
        folder: Folder of the run.
        digest: Digest of its planned point.
    """
    sizes = {product: _size(f"{folder}/{product}") for product in Binding.products}
    outdated = {product for product, size in sizes.items() if size == 0}
    manifest = "raw/manifest.json"
    if sizes[manifest] is not None and not _is_manifest_usable(Path(folder, manifest), digest):
        outdated.add(manifest)
    # A single missing trace file; if all are missing, Snakemake makes them as far as something needs them.
    if any(sizes[product] for product in Binding.trace_products):
        outdated |= {product for product in Binding.trace_products if not sizes[product]}
    return {f"{folder}/{product}" for product in outdated}


def _size(path: Path | str) -> int | None:
    """Return the size of a file in bytes; None if it does not exist."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a `Path` costs three times as much, for 11 files of every run
    except OSError:
        return None


def _is_empty(path: Path | str) -> bool:
    """Return whether a file exists and is empty, which happens when a disk is full."""
    return _size(path) == 0


def _has_content(path: Path | str) -> bool:
    return bool(_size(path))


def _is_manifest_usable(path: Path, digest: str) -> bool:
    """Return whether a manifest is readable and of the planned point."""
    try:
        return bool(load_json(path.read_bytes()).get("digest") == digest)
    except (OSError, ValueError, AttributeError):
        return False


def _is_plan(path: Path, plan: Plan) -> bool:
    """Return whether a file holds this plan."""
    try:
        return path.read_text(encoding="utf-8") == plan.text()
    except (OSError, ValueError):
        return False


def is_dry_run(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a dry run of Snakemake.

    Snakemake itself knows it only after it has read the Snakefile, and has no hook for the end of a dry run.
    """
    return Path(words[0]).name in _SNAKEMAKE and any(_DRY_RUN.fullmatch(word) for word in words[1:])


def start_cost_summary(arguments: str) -> None:
    """Start `triplepoint plan --summary` in another process, alongside Snakemake; print its output at exit.

    Args:
        arguments: Arguments of `triplepoint plan`, as in a shell.
    """
    command = [sys.executable, "-m", "triplepoint", "plan", *shlex.split(arguments), "--summary"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    atexit.register(lambda: print(process.communicate()[0], end="", file=sys.stderr))
