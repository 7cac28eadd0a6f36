"""Random damage to input files, and random kills: `python -m tests.benchmarks.fault_campaign --number 100`.

The files are recordings, traces and tables of users, files of a small run, studies and site files. Prints a line for
each seed. A command may work or refuse in one line with exit status 2; a traceback, a hang or many lines are counted,
and the exit status is 1 if there was any. `--launches 5` kills processes of real launches too: the next launch has to
end well, with no process of the first left. `--disks 5` fills the disk of launches or makes it read-only (`unshare
-rm`, a small tmpfs): the launch has to end in one line, and the next one well. `--pipelines 5` lets accidents happen
between and during calls of Snakemake (`pipeline_faults`), `--slurm 5` to jobs of the test cluster (`slurm_soak`).
`make campaign` does all, with its log.
"""

import argparse
import atexit
import contextlib
import functools
import gzip
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.benchmarks.pipeline_faults import disturb, prepare
from tests.launchers import environment
from tests.points import planned, tiny_point, write_run
from triplepoint.cli import main as triplepoint
from triplepoint.config.site import SITE_VARIABLE, gang_of, read_site
from triplepoint.errors import UserError
from triplepoint.manifest import read_manifest

DATA = Path("tests/data")
LONGEST_S = 120.0
"""Time limit of a command; on an idle machine each takes a few seconds."""
NUMBERS = b"nan inf -inf -1 0 1e18 1e400 18446744073709551616 x [".split() + [b"", b'"', b"\0"]
HOSTILE = (*b"../../x ' =1+1 <script> ;$(id)".split(), b"a b", b'"', b"\n", "\u00e9\u4e2d\u202e".encode())
KILLS = ("launcher", "agent", "rank", "sampler")


PREDICTED = b"""id,model,cluster,num_gpus,tp,dp,micro_batch_size,global_batch_size
1,llama3-8b,h200x32,8,8,1,1,8
2,llama3-8b,h200x32,8,4,2,1,16
"""
POWER = b"t_s,node_power_w\n" + b"".join(b"%d.%d,%d\n" % (t // 10, t % 10, 5000 + t % 7 * 300) for t in range(300))


def subjects() -> list[tuple[str, bytes, Callable[[Path, Path], list[str]]]]:
    """Return name and content of input files, and functions from a file and an output to a command line."""
    files = sorted((DATA / "importers").glob("*.*"))
    found = [(path, lambda file, out: ["import", str(file.parent), "--results", str(out)]) for path in files]
    traces = [path for kind in ("traces/*.gz", "chakra/*.et") for path in sorted(DATA.glob(kind))]
    found += [(path, lambda file, out: ["trace", str(file), "--out", str(out)]) for path in traces]
    small = [(path.name, path.read_bytes(), words) for path, words in found if path.stat().st_size < 1_000_000]
    return [
        *((name, content, words) for name, content, words in small if not name.endswith(".md")),
        *[("rows.csv", PREDICTED, lambda file, out: ["predict", str(file), str(out)])] * 6,
        *[("power.csv", POWER, lambda file, out: ["swings", str(file)])] * 6,
    ]


def damage(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Return a description of a random damage, and the damaged content of a file."""
    lines = content.splitlines(keepends=True)
    kind = chance.choice(("number", "hostile", "cut", "twice", "order", "bytes", "empty line"))
    at = chance.randrange(max(1, len(content)))
    if kind == "cut":
        return kind, content[:at]
    if kind == "bytes":
        return kind, content[:at] + chance.randbytes(8) + content[at + 8 :]
    if kind in ("twice", "order", "empty line") and len(lines) > 2:
        where = chance.randrange(1, len(lines))
        if kind == "twice":
            lines.insert(where, lines[where])
        elif kind == "order":
            chance.shuffle(lines)
        else:
            lines[where] = b"\n"
        return kind, b"".join(lines)
    new = chance.choice(NUMBERS if kind == "number" else HOSTILE)
    digits = [place for place, byte in enumerate(content) if 48 <= byte < 58][:100_000]
    if not digits:
        return kind, new + content
    start = end = chance.choice(digits)
    while end < len(content) and content[end : end + 1] in b"0123456789.":
        end += 1
    return f"{kind} {new!r}", content[:start] + new + content[end:]


SMI = b"timestamp, index, name, power.draw.instant [W], temperature.gpu\n" + b"".join(
    b"2026/05/01 10:%02d:%02d.000, %d, NVIDIA H100 80GB HBM3, %d.00 W, %d\n"
    % (second // 60, second % 60, gpu, 400 + second % 7 * 20 + gpu, 50 + second % 3)
    for second in range(120)
    for gpu in range(2)
)
MARKED = b"step,start,end\n" + b"".join(
    b"%d,2026-05-01 10:%02d:%02d,2026-05-01 10:%02d:%02d\n"
    % (step, step * 5 // 60, step * 5 % 60, (step + 1) * 5 // 60, (step + 1) * 5 % 60)
    for step in range(20)
)
STUDY = b"""description: What the micro-batch costs.
defaults: {cluster: cpu-local, engine: native, model: tiny-llama, num_gpus: 4, global_batch_size: 16, precision: fp32}
sweeps:
  - set: {tp: 2, sequence_parallel: true}
    axes: {micro_batch_size: [1, 2, 4], recompute: [none, full]}
"""
SITE = b"""stages: {runtime: 60, slurm_partition: batch}
room_nodes: 8
gangs:
  cpu-local: {requeues: 3, retries: 1, exclude: [node7]}
"""
RUN_FILES = (
    "point.json", "telemetry.parquet", "raw/manifest.json", "raw/steps.parquet", "raw/telemetry/node0.arrow"
)  # fmt: skip


@functools.cache
def small_run() -> Path:
    """Make and return the folder of a small imported run, with its aligned telemetry."""
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "in").mkdir()
    (place / "in" / "smi.csv").write_bytes(SMI)
    (place / "steps.csv").write_bytes(MARKED)
    results = str(place / "results")
    words = ["import", str(place / "in"), "--steps", str(place / "steps.csv"), "--timezone", "UTC"]
    assert run([*words, "--results", results]) is None
    (folder,) = (place / "results" / "runs").glob("job*")
    assert run(["telemetry", folder.name, "--results", results]) is None
    return folder


def read_damaged_run(seed: int) -> str | None:
    """Damage one file of a small run, read the run, and return a description of a wrong outcome, or None."""
    chance = random.Random(seed)
    whole = small_run()
    name, reader = chance.choice(RUN_FILES), chance.choice(("why", "recommend", "telemetry", "compare"))
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results"
        shutil.copytree(whole.parents[1], results)
        folder = results / "runs" / whole.name
        kind, content = damage((folder / name).read_bytes(), chance)
        (folder / name).write_bytes(content)
        words = [reader, str(folder), *([str(whole)] if reader == "compare" else [])]
        problem = run(words)
    print(f"seed {seed}: {reader} of a run, {name}: {kind}: {problem or 'fine'}", flush=True)
    return problem


def read_damaged_settings(seed: int) -> str | None:
    """Damage a study or a site file, read it, and return a description of a wrong outcome; None if it is right."""
    chance = random.Random(seed)
    is_site = chance.random() < 0.4
    kind, content = damage(SITE if is_site else STUDY, chance)
    with tempfile.TemporaryDirectory() as scratch:
        if is_site:
            problem = read_damaged_site(Path(scratch) / "site.yaml", content)
        else:
            config = Path(scratch) / "config"
            shutil.copytree("config", config)
            (config / "studies" / "mine.yaml").write_bytes(content)
            problem = run(["plan", "mine", "--config", str(config), "--results", str(Path(scratch) / "results")])
    print(f"seed {seed}: {'site' if is_site else 'plan, study'}: {kind}: {problem or 'fine'}", flush=True)
    return problem


def read_damaged_site(site: Path, content: bytes) -> str | None:
    """Read a site file with some content and return a description of a wrong outcome; None if it is right."""
    site.write_bytes(content)
    before = os.environ.get(SITE_VARIABLE)
    os.environ[SITE_VARIABLE] = str(site)
    try:
        gang_of("cpu-local", read_site())
    except UserError as error:
        return f"more than a line: {error}" if "\n" in str(error) else None
    except Exception as error:  # whatever it is, it is what is looked for
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.pop(SITE_VARIABLE)
        if before is not None:
            os.environ[SITE_VARIABLE] = before
    return None


def read_damaged(seed: int) -> str | None:
    """Damage one file, run its command, and return a description of a wrong outcome; None if the outcome is right."""
    chance = random.Random(seed)
    if (kind_of_file := chance.random()) < 0.4:
        return read_damaged_run(seed) if kind_of_file < 0.3 else read_damaged_settings(seed)
    name, content, words = chance.choice(subjects())
    is_packed = content[:2] == b"\x1f\x8b" and chance.random() < 0.8
    kind, content = damage(gzip.decompress(content) if is_packed else content, chance)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "in" / name
        file.parent.mkdir()
        file.write_bytes(gzip.compress(content, 1) if is_packed else content)
        problem = run(words(file, Path(scratch) / "out"))
    print(f"seed {seed}: {name}: {kind}: {problem or 'fine'}", flush=True)
    return problem


def run(words: list[str]) -> str | None:
    """Run a command in this process and return a description of a wrong outcome; None if the outcome is right."""
    said = io.StringIO()

    def hung(number: int, frame: object) -> None:
        raise TimeoutError(f"hung for {LONGEST_S:.0f} s")

    signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = triplepoint(words)
    except BaseException as error:  # whatever it is, it is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} at {Path(place.filename).name}:{place.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if status not in (0, 2):
        return f"exit status {status}: {said.getvalue()[-200:]}"
    lines = said.getvalue().splitlines()
    refused = [line for line in lines if line.startswith("triplepoint: ")]
    if status == 0 or (len(refused) == 1 and lines[-1] == refused[0]):
        return None
    return f"refused in other than one last line: {said.getvalue()[-400:]}"


def kill_in_launch(seed: int) -> str | None:
    """Kill a process of a launch, launch again, and return a description of a wrong outcome; None if it is right."""
    chance = random.Random(seed)
    victim, after_s = chance.choice(KILLS), chance.uniform(0, 30)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results"
        folder = write_run(results, planned(tiny_point()))
        command = [sys.executable, "-m", "triplepoint", "launch", folder.name, "--results", str(results)]
        launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(after_s)
        processes = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
        marks = {"agent": "agent0", "rank": "launch.rank", "sampler": "sample"}
        killed = "nothing"
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            mark = marks.get(victim, "\0")
            fitting = [one for one in processes[1:] if mark in " ".join([one.name(), *one.cmdline()])]
            os.kill(chance.choice(fitting or processes[:1]).pid, signal.SIGKILL)
            killed = victim if fitting else "launcher"
        launcher.wait()
        _, left = psutil.wait_procs(processes[1:], 60)
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        problems = [f"{len(left)} processes left"] if left else []
        problems += [f"exit status {again.returncode}: {again.stderr[-200:]}"] if again.returncode else []
        manifest = folder / "raw" / "manifest.json"
        problems += [] if manifest.is_file() and read_manifest(manifest).status == "ok" else ["no result"]
    problem = "; ".join(problems) or None
    print(f"seed {seed}: {killed} killed after {after_s:.1f} s: {problem or 'whole, once'}", flush=True)
    return problem


FULL = "mount -t tmpfs -o size={size} tmpfs {results}"
READ_ONLY = (
    "mount -t tmpfs tmpfs {results}; (sleep {after_s}; until mount -o remount,ro {results}; do sleep 0.02; done) &"
)
"""Remounts a file system read-only; repeats that while files are open for writing."""
TWICE = """\
{fault}
cp -a {prepared}/. {results}
{launch} > {said} 2>&1
echo $? > {said}.status
kill $! 2> /dev/null
mount -o remount,rw,size=64m {results} && exec {launch}
"""


def disk_in_launch(seed: int) -> str | None:
    """Launch on a disk that becomes full or read-only, then again; return a description of a wrong outcome."""
    chance = random.Random(seed)
    kind, size, after_s = chance.choice(("full", "read-only")), round(2 ** chance.uniform(14, 17)), chance.uniform(0, 8)
    with tempfile.TemporaryDirectory() as scratch:
        prepared, results, said = (Path(scratch, name) for name in ("prepared", "results", "said"))
        results.mkdir()
        folder = write_run(prepared, planned(tiny_point()))
        script = TWICE.format(
            fault=(FULL if kind == "full" else READ_ONLY).format(size=size, results=results, after_s=after_s),
            launch=f"{sys.executable} -m triplepoint launch {folder.name} --results {results}",
            prepared=prepared, results=results, said=said,
        )  # fmt: skip
        again = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script], env=environment(trains=False), capture_output=True, text=True
        )
        words, status = said.read_text(), said.with_name("said.status").read_text().strip()
        problems = ["traceback"] if "Traceback" in words else []
        problems += [f"exit status {status}: {words[-200:]}"] if status not in ["0", "1", "2"] else []
        problems += (
            [f"refused without a word: {words[-200:]}"] if status != "0" and "triplepoint: " not in words else []
        )
        problems += [f"again: exit status {again.returncode}: {again.stderr[-300:]}"] if again.returncode else []
    problem = "; ".join(problems) or None
    how = f"full at {size / 1024:.0f} KiB" if kind == "full" else f"read-only after {after_s:.1f} s"
    print(f"seed {seed}: disk {how}: status {status}: {problem or 'whole, once'}", flush=True)
    return problem


def disturb_pipelines(seeds: range) -> int:
    """Apply accidents to copies of a finished project; return the number of wrong outcomes."""
    with tempfile.TemporaryDirectory() as scratch:
        finished = prepare(Path(scratch, "finished")) if seeds else None
        wrong = 0
        for seed in seeds:
            with tempfile.TemporaryDirectory() as place:
                wrong += finished is not None and disturb(finished, Path(place), seed) is not None
        return wrong


def soak(seeds: range) -> bool:
    """Inject faults into the test cluster; return whether a run was lost or duplicated."""
    words = ["--number", str(len(seeds)), "--first", str(seeds.start)]
    return bool(seeds) and subprocess.run([sys.executable, "-m", "tests.benchmarks.slurm_soak", *words]).returncode != 0


def main() -> int:
    """Run the faults of consecutive seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="files damaged")
    parser.add_argument("--launches", type=int, default=0, help="launches with a process killed")
    parser.add_argument("--disks", type=int, default=0, help="launches on a disk that is full or read-only")
    parser.add_argument("--pipelines", type=int, default=0, help="projects with accidents around calls of Snakemake")
    parser.add_argument("--slurm", type=int, default=0, help="faults of the test cluster, which has to be up")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    arguments = parser.parse_args()

    def seeds_of(number: int) -> range:
        return range(arguments.first, arguments.first + number)

    wrong = {
        f"of {arguments.number} files damaged": sum(
            read_damaged(seed) is not None for seed in seeds_of(arguments.number)
        ),
        f"of {arguments.launches} launches killed": sum(
            kill_in_launch(seed) is not None for seed in seeds_of(arguments.launches)
        ),
        f"of {arguments.disks} disks": sum(disk_in_launch(seed) is not None for seed in seeds_of(arguments.disks)),
        f"of {arguments.pipelines} projects": disturb_pipelines(seeds_of(arguments.pipelines)),
        f"soaks of {arguments.slurm} faults of the test cluster": int(soak(seeds_of(arguments.slurm))),
    }
    print("ended wrongly: " + ", ".join(f"{number} {what}" for what, number in wrong.items()))
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
