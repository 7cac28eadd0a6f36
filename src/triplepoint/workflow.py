"""What the Snakemake rules need to know: the runs of the plan, outdated results, the source files of each stage.

Snakemake compares times, parameters and checksums of files that are there, and makes missing files only where they are
targets or where a job that runs needs them. Behind a figure that is there it does not see that a table is missing; it
takes an empty file for a result; and once its own records are lost it cannot tell that anything has changed.
"""

import atexit
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from triplepoint import figures
from triplepoint.claims import claim_results
from triplepoint.config.base import parse
from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.config.study import Selection
from triplepoint.errors import UserError, explain_os_error, refuse
from triplepoint.figures.selection import figures_of, require_selected
from triplepoint.plan import select, write_plan

_RECORDS = Path(".snakemake/metadata")
"""Where Snakemake keeps what it made each file with."""
_DRY_RUN = re.compile(r"--dry-?run|-[a-zA-Z]*n[a-zA-Z]*")
_SNAKEMAKE = ("snakemake", "__main__.py")
PACKAGE = Path(__file__).parent
ROOT_MODULE = __package__
DATA_SUFFIXES = (".yaml", ".html")
_IMPORT = re.compile(
    rf"\n[ \t]*(?:from[ \t]+({ROOT_MODULE}[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n]*))"
    rf"|import[ \t]+({ROOT_MODULE}[\w.]*))"
)
_DATA_END = re.compile(r"""\.(?:yaml|html)["']""")
"""Imports of this package and ends of names of data files in source text: to parse all of it would take a second.

Both patterns begin with a fixed character, which Python searches for faster than for what may be anything.
"""

RUN_PATTERN = "[^/]+"
"""Regular expression of any run id; of one that is not planned the stages say that there is no such run."""

_RESULTS = Path("results")

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
"""All rules but the one that costs GPU hours."""

TRACE_TABLES = ("kernels", "intervals", "categories", "collectives", "ranks", "critical_path", "timeline")
"""Tables of a run that `triplepoint trace` writes."""


_TABLES = _RESULTS / "tables"
_MOST_NAME = 80
"""Longest name of a report. Unit: character."""


def bind(config: Mapping[str, Any], base: str, asked: Sequence[str] = (), reports: Sequence[str] = ()) -> "Binding":
    """Return what the rules need, or end the process with one line and status 2 if the configuration is wrong.

    Args:
        config: Snakemake's configuration.
        base: Folder of the Snakefile.
        asked: Figures that the command line names.
        reports: Front pages of reports that it names.
    """
    # Rules call `triplepoint`, which stands next to the interpreter also where its environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        selection = parse(Selection, dict(config), "config/config.yaml or --config")
        if selection.trace_rules is not None and not Path(selection.trace_rules).is_file():
            raise UserError(f"config/config.yaml or --config: trace_rules: no file {selection.trace_rules!r}")
        plan = select(Path("config"), selection.studies, selection.clusters, selection.simulated, _RESULTS)
        require_selected(asked, plan, Path("config"))
        binding = Binding(selection, Path(base), plan)
        binding.require_reports(reports)
    except UserError as error:
        refuse(error)
    of_runs = [name for name in asked if not figures.spec_of(name).simulated]
    if of_runs or not asked:
        budget = f"--max-gpu-hours {selection.max_gpu_hours}"
        tell_cost(" ".join([binding.arguments, budget, *(f"--figure {name}" for name in of_runs)]))
    return binding


class Binding:
    """The selection as the rules see it."""

    tables = (
        "points", "gpus", "nodes", "traffic", "step_energy", "step_samples", "job_power", "phases", "breakdown",
        "kernels", "telemetry_checks", "published", "timeline",
    )  # fmt: skip
    """Tables that every study has."""
    parquet_only = ("breakdown", "job_power", "step_samples", "timeline")
    over_all = ("claims",)
    """Tables of all studies together."""
    trace_products = (*(f"{name}.parquet" for name in TRACE_TABLES), "perfetto.json.gz")
    products = ("raw/manifest.json", "telemetry.parquet", *trace_products)
    # What `aggregate` reads of a run, and below it one file of each rule that writes it: each further file of a
    # thousand runs costs Snakemake a quarter of a second.
    aggregated = (
        "raw/manifest.json",
        *(f"{name}.parquet" for name in ("telemetry", "kernels", "categories", "intervals", "timeline")),
    )
    behind_aggregate = ("raw/manifest.json", "telemetry.parquet", "kernels.parquet")

    def __init__(self, selection: Selection, base: Path, plan: Plan) -> None:
        self._selection = selection
        self._base = base
        self._plan = plan
        self._contents: dict[Path, str] = {}
        self._plans = {study: plan.of_study(study) for study in plan.studies}
        self.studies = plan.studies
        """Selected studies that have a point."""
        self.is_alone = selection.studies is not None
        """Whether studies are named: their report is beside that of all, and what is judged of all is left as it is."""
        self.figures = figures_of(plan, self.is_alone)
        """Figures to have: `NAME` over the studies it names, `STUDY/NAME` of one alone."""
        self._num_nodes = {entry.run: entry.planned.point.num_nodes for entry in plan.valid}
        self._parts = {
            entry.run: _cut(entry.planned.point.traced_ranks, selection.ranks_per_part) for entry in plan.valid
        }
        self._parsed_where_joined = {
            entry.run
            for entry in plan.valid
            if entry.planned.point.engine == "simulated" and len(self._parts[entry.run]) == 1
        }

    @property
    def runs(self) -> list[str]:
        """Run ids to have, in the order of the studies."""
        return [entry.run for entry in self._plan.valid]

    @property
    def table_names(self) -> list[str]:
        """Files that `aggregate` writes for a study."""
        small = [table for table in self.tables if table not in self.parquet_only]
        return [*(f"{table}.parquet" for table in self.tables), *(f"{table}.csv" for table in small), "plan.json"]

    @property
    def table_files(self) -> list[str]:
        """All that `aggregate` writes."""
        return [f for study in self.studies for f in self._tables_of(study)]

    @property
    def report(self) -> str:
        """Front page of the report without its end: `report`, or `report-STUDY` of studies that are named."""
        name = "-".join(["report", *(self.studies if self.is_alone else ())])
        return (
            name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
        )

    def require_reports(self, pages: Iterable[str]) -> None:
        """Refuse front pages that the selected studies do not make. Raises `UserError` with the command that does."""
        known = {
            path.stem for folder in ("config/studies/*.yaml", "results/recorded/*.json") for path in Path().glob(folder)
        }
        for page in pages:
            if page == f"{self.report}.html":
                continue
            study = page.removeprefix("report-").removesuffix(".html")
            named = [study] if study in known else self.studies if self.is_alone else ()
            options = f" --config 'studies=[{','.join(named)}]'" if named else ""
            raise UserError(
                f"{page}: the report of the selected studies is {self.report}.html; make "
                f'{page if study in known else "it"} with "snakemake report{options}"'
            )

    @property
    def report_arguments(self) -> str:
        """What `triplepoint report` needs to know."""
        return f"--out {self.report}.html{' --alone' if self.is_alone else ''}"

    @property
    def report_tables(self) -> list[str]:
        """Tables behind the report: of named studies, claims are judged by it."""
        return self.tables_behind([*self.tables, *(() if self.is_alone else self.over_all)])

    @property
    def judged(self) -> list[str]:
        """Tables of claims to have: none where studies are named."""
        return [] if self.is_alone else self.claim_tables

    @property
    def claim_tables(self) -> list[str]:
        """What `claims` writes."""
        return [str(_TABLES / f"{table}.{kind}") for table in self.over_all for kind in ("parquet", "csv")]

    def tables_behind(self, names: Iterable[str], studies: Iterable[str] | None = None) -> list[str]:
        """Return the files that hold some tables of some studies, all selected ones unless said otherwise."""
        studies = self.studies if studies is None else studies
        common = [str(_TABLES / f"{name}.parquet") for name in names if name in self.over_all]
        own = [*(f"{name}.parquet" for name in names if name not in self.over_all), "plan.json"]
        return common + [str(_TABLES / study / name) for study in studies for name in own]

    def figure_tables(self, figure: str) -> list[str]:
        """Return the files a figure is drawn from."""
        spec = figures.spec_of(figure)
        if spec.simulated:
            return [str(_RESULTS / f"{spec.simulated}.parquet")]
        return self.tables_behind(spec.tables, spec.studies)

    def question(self, figure: str) -> str:
        """Return what a figure answers."""
        return figures.spec_of(figure).question

    def caption(self, figure: str) -> str:
        """Return the caption of a figure: Snakemake fills no wildcards in its path."""
        return figures.caption(figure)

    def simulated_pattern_of(self, kind: str) -> str:
        """Return the regular expression of the files in a folder of the configuration, `whatif` or `projection`."""
        names = sorted(path.stem for path in Path("config", kind).glob("*.yaml"))
        return "|".join(map(re.escape, names)) or "(?!)"

    @property
    def caption_files(self) -> list[str]:
        """The captions of the figures to have."""
        names = dict.fromkeys(figures.spec_of(figure).name for figure in self.figures)
        return [str(figures.CAPTIONS / f"{name}.rst") for name in names]

    @property
    def study_pattern(self) -> str:
        """Regular expression of the selected studies."""
        return "|".join(map(re.escape, self.studies)) or "(?!)"

    @property
    def figure_pattern(self) -> str:
        """Regular expression of the figures that can be drawn: all of the catalogue, of their studies and of one."""
        return f"(?:(?:{self.study_pattern})/)?(?:{'|'.join(figures.NAMES)})"

    def aggregated_files(self, study: str) -> list[str]:
        """Return the files of runs that Snakemake has behind the tables of a study, one of each rule."""
        return self._files_of_runs(study, self.behind_aggregate)

    def _files_of_runs(self, study: str, products: Iterable[str]) -> list[str]:
        runs = [entry.run for entry in self._plans[study].valid]
        return [f"{_RESULTS}/runs/{run}/{product}" for run in runs for product in products]

    def _tables_of(self, study: str) -> list[str]:
        return [str(_TABLES / study / name) for name in self.table_names]

    @property
    def simulated_pattern(self) -> str:
        """Regular expression of the ids of the runs that are simulated."""
        return self._pattern(lambda entry: entry.planned.point.engine == "simulated")

    @property
    def launched_pattern(self) -> str:
        """The same of the runs that are launched; those that were recorded are not made again."""
        return self._pattern(
            lambda entry: entry.planned.point.engine != "simulated" and entry.planned.point.recorded is None
        )

    def write_plan(self) -> None:
        """Claim the results and write `plan.json` and all `point.json`, or end with one line and status 2.

        The claim is this process's until it ends; its jobs may write, other workflows and commands may not.
        """
        try:
            atexit.register(claim_results(_RESULTS).acquire_or_refuse().release)
            write_plan(self._plan, _RESULTS)
        except (OSError, UserError) as error:
            line = explain_os_error(error) if isinstance(error, OSError) else None
            refuse(line or error)

    def check_budget(self, runs: Sequence[str]) -> None:
        """End the process with one line and status 2 if launches go beyond the budget and no study is named.

        Args:
            runs: Runs that are about to be launched.
        """
        if not runs or self._selection.studies is not None:
            return
        from triplepoint.plan_cost import over_budget, plan_cost

        meant = set(runs)
        launched = Plan(entries=tuple(entry for entry in self._plan.valid if entry.run in meant))
        line = over_budget(plan_cost(launched, _RESULTS, Path("config")), self._selection.max_gpu_hours)
        if line is not None:
            refuse(line)

    def outdated(self) -> set[str]:
        """Return files to be made again although Snakemake would take them for up to date."""
        found = outdated_files(self._plan, _RESULTS, self.products)
        for run in self.runs:
            traces = {f"{_RESULTS}/runs/{run}/{product}" for product in self.trace_products}
            there = set(filter(_holds_something, traces))
            found |= traces - there if there else set()
        for study, plan in self._plans.items():
            files = self._tables_of(study)
            behind = self._files_of_runs(study, self.aggregated)
            if _is_of_another_plan(_TABLES / study / "plan.json", plan) or not all(
                map(_holds_something, files + behind)
            ):
                found.update(files)
        if not all(map(_holds_something, self.judged)):
            found.update(self.judged)
        shown = [f"figs/{figure}.{kind}" for figure in self.figures for kind in ("pdf", "svg", "png", "csv")]
        found.update(filter(_is_empty, [*shown, f"{self.report}.html"]))
        return found

    @property
    def outdated_rules(self) -> tuple[str, ...]:
        """Rules of which every job is to run again."""
        return CHEAP_RULES if are_records_lost(self.table_files) else ()

    def num_nodes(self, run: str) -> int:
        """Return how many nodes the gang of a run fills."""
        return self._num_nodes[run]

    def parts(self, run: str) -> list[str]:
        """Return the parts that the traced ranks of a run are parsed in, each named by its first and last rank.

        None where `trace` parses them: simulated traces are small, and starting a job costs more than parsing them.
        """
        return [] if run in self._parsed_where_joined else list(self._parts.get(run, ()))

    def num_traces(self, run: str, part: str) -> int:
        """Return how many ranks of a part are traced."""
        return self._parts[run][part]

    @property
    def trace_rules(self) -> list[str]:
        """The file of the user's own rules, if there is one."""
        return [self._selection.trace_rules] if self._selection.trace_rules else []

    @property
    def trace_arguments(self) -> str:
        """The same as arguments of `triplepoint parse`."""
        return " ".join(f"--rules {shlex.quote(path)}" for path in self.trace_rules)

    def trace_options(self, run: str) -> str:
        """Return what `triplepoint trace` needs to know to parse a run's traces itself; nothing for others."""
        return f"--parse --jobs 1 {self.trace_arguments}".strip() if run in self._parsed_where_joined else ""

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {study: plan.digest() for study, plan in self._plans.items()}

    def digest(self, study: str) -> str:
        """Return the identity of the plan of a study, whatever else is selected."""
        return self._digests[study]

    @property
    def arguments(self) -> str:
        """The selection as arguments of `triplepoint plan`."""
        named = self._selection.clusters
        clusters = ["--all-clusters"] if named is None else [f"--cluster {name}" for name in named]
        simulated = [f"--simulated {name}" for name in self._selection.simulated]
        return " ".join([*(self._selection.studies or ()), *clusters, *simulated])

    @property
    def machines(self) -> str:
        """A digest of the files that say what machines can do, behind what is simulated."""
        kinds = ("gpus", "clusters", "kernels", "collectives", "calibration", "power", "heat")
        return self._digest_of_folders(kinds)

    @property
    def compared(self) -> str:
        """A digest of the files that say which points there are to compare, and what is published of them."""
        return self._digest_of_folders(("studies", "models", "published"))

    def _digest_of_folders(self, kinds: Iterable[str]) -> str:
        return self._digest_of(path for kind in kinds for path in Path("config", kind).rglob("*") if path.is_file())

    def gpu_files(self, study: str) -> list[str]:
        """Return the files of the GPU types of a study: their peaks are behind its tables."""
        gpus = {entry.planned.point.cluster.gpu for entry in self._plans[study].entries} - {None}
        return [f"config/gpus/{gpu}.yaml" for gpu in sorted(filter(None, gpus))]

    @property
    def claim_files(self) -> list[str]:
        """The published claims and their figures, if there are any: what results are judged by."""
        folder = Path("config", "published")
        return sorted(str(path) for path in [*folder.glob("claims.yaml"), *folder.glob("figures/*.csv")])

    @property
    def sensor_files(self) -> list[str]:
        """Sensor cards and trials of the sampler's cost that there are: all of them are behind the tables."""
        return sorted(str(path) for path in Path("results", "sensors").glob("*.json"))

    def code(self, stage: str) -> str:
        """Return a digest of the source files `triplepoint <stage>` depends on.

        Rules take it as a parameter. As inputs, a hundred files of every job cost Snakemake more than most jobs cost.
        """
        return self._digest_of(sources(f"{ROOT_MODULE}.cli.{stage}"))

    def figure_code(self, figure: str) -> str:
        """Return a digest of the source files one figure depends on."""
        module = figures.spec_of(figure).module
        return self._digest_of(sources(f"{ROOT_MODULE}.figures.write") | sources(module))

    def _pattern(self, is_meant: Callable[[PlanEntry], bool]) -> str:
        """Return a regular expression of some run ids, as short as can be: Snakemake searches it for each file."""
        meant = [entry.run for entry in self._plan.valid if is_meant(entry)]
        if meant and len(meant) == len(self._plan.valid):
            return RUN_PATTERN
        return "|".join(map(re.escape, meant)) or "(?!)"

    def _digest_of(self, files: Iterable[Path]) -> str:
        inside = f"{self._base.resolve()}/"
        names = {str(path).removeprefix(inside): path for path in files}
        found = hashlib.sha256()
        for name in sorted(names):
            path = names[name]
            if path not in self._contents:
                self._contents[path] = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{name} {self._contents[path]}\n".encode())
        return found.hexdigest()[:16]


def _cut(ranks: list[int], size: int) -> dict[str, int]:
    """Return the name and the number of ranks of each part."""
    parts = [ranks[begin : begin + size] for begin in range(0, len(ranks), size)]
    return {f"{part[0]}-{part[-1]}": len(part) for part in parts}


def sources(module: str) -> frozenset[Path]:
    """Return the files behind `module`: its own, those of the package it imports, at any depth, and their data."""
    found: dict[str, frozenset[Path]] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if name not in found and path is not None:
            imports, data = _read_module(path)
            found[name] = frozenset([path, *data])
            waiting.extend(imports)
        elif name not in found:
            found[name] = _extension(name)
    return frozenset().union(*found.values())


@cache
def _file_of(module: str) -> Path | None:
    path = f"{PACKAGE.parent}/{module.replace('.', '/')}"
    return next((Path(file) for file in (f"{path}.py", f"{path}/__init__.py") if file in _python_files()), None)


@cache
def _python_files() -> frozenset[str]:
    """Return the modules of this package and their stubs, listed once: to look for each candidate takes longer."""
    walked = os.walk(PACKAGE)
    return frozenset(
        f"{folder}/{name}" for folder, _, names in walked for name in names if name.endswith((".py", ".pyi"))
    )


@cache
def _extension(module: str) -> frozenset[Path]:
    """Return the files behind a module in C, of another none: what was built, and the sources in a folder named so."""
    if f"{PACKAGE.parent}/{module.replace('.', '/')}.pyi" not in _python_files():
        return frozenset()
    path = PACKAGE.joinpath(*module.split(".")[1:])
    built = [path.with_name(path.name + suffix) for suffix in EXTENSION_SUFFIXES]
    return frozenset([*filter(Path.is_file, built), *path.with_name(path.name.removeprefix("_")).glob("*.[ch]")])


@cache
def _read_module(path: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the modules of this package a file imports, anywhere in it, and the data files it names in its strings."""
    text = path.read_text(encoding="utf-8")
    imports: list[str] = []
    for module, several, rest, alone in _IMPORT.findall(f"\n{text}"):
        names = re.sub(r"#[^\n]*", "", several or rest).split(",")
        imports += [alone or module, *(f"{module}.{name.split()[0]}" for name in names if name.strip())]
    data: list[Path] = []
    for end in _DATA_END.finditer(text):
        begin = max(text.rfind(mark, 0, end.start()) for mark in "\"'\n") + 1
        name = text[begin : end.end() - 1].rpartition("}")[2]
        # A suffix alone is the end of f"{name}.yaml", which may be any of them.
        data += filter(Path.is_file, path.parent.glob(f"*{name}") if name in DATA_SUFFIXES else [path.parent / name])
    return tuple(name for name in imports if name.startswith(f"{ROOT_MODULE}.")), tuple(data)


def outdated_files(plan: Plan, results: Path, products: Sequence[str]) -> set[str]:
    """Return the files of runs to be made again, as the rules name them.

    Args:
        plan: What is asked for.
        results: Folder of results.
        products: Files that every run comes to, below its folder.
    """
    folders = {entry.run: results / "runs" / entry.run for entry in plan.valid}
    manifests = {run: folder / "raw" / "manifest.json" for run, folder in folders.items()}
    found = {folder / product for folder in folders.values() for product in products if _is_empty(folder / product)}
    found |= {manifests[entry.run] for entry in plan.valid if _is_damaged(manifests[entry.run], entry.planned.digest)}
    return set(map(str, found))


def are_records_lost(tables: Sequence[str]) -> bool:
    """Return whether there are tables and no record of what they were made with: then all but launches is outdated."""
    return not any(_RECORDS.glob("*")) and any(Path(path).exists() for path in tables)


def _size(path: Path | str) -> int | None:
    """Return the bytes of a file; None if it is not there."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def _is_empty(path: Path | str) -> bool:
    """Return whether a file is there and holds nothing, as a full disk leaves it."""
    return _size(path) == 0


def _holds_something(path: Path | str) -> bool:
    return bool(_size(path))


def _is_damaged(path: Path, digest: str) -> bool:
    """Return whether a manifest is there and not whole, or of another point."""
    try:
        return json.loads(path.read_bytes()).get("digest") != digest  # type: ignore[no-any-return]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True


def _is_of_another_plan(path: Path, plan: Plan) -> bool:
    """Return whether the plan beside tables is another, or not there."""
    try:
        return path.read_text(encoding="utf-8") != plan.text()
    except (OSError, ValueError):
        return True


def is_dry_run(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a dry run of Snakemake.

    Snakemake itself knows only when it has read the Snakefile, and there is no hook for the end of a dry run.
    """
    return Path(words[0]).name in _SNAKEMAKE and any(_DRY_RUN.fullmatch(word) for word in words[1:])


def tell_cost(selection: str) -> None:
    """In a dry run, work out the selection's cost alongside Snakemake, in another process, and tell at its end."""
    if is_dry_run(sys.argv):
        command = [sys.executable, "-m", "triplepoint", "plan", *shlex.split(selection), "--summary"]
        atexit.register(_tell, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))


def _tell(process: "subprocess.Popen[str]") -> None:
    told, _ = process.communicate()
    print(told, end="", file=sys.stderr)
