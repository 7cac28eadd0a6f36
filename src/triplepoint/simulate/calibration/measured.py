"""Tables of measured step times: read, simulated, and what they calibrate."""

from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.simulate.calibration.fit import Case, fit, make_case
from triplepoint.simulate.predict.batch import read_table, settle
from triplepoint.simulate.predict.rows import read_row
from triplepoint.simulate.predict.spelling import UnreadableError, read_number

_HEADER = """\
# Written by `triplepoint calibrate`. One constant per version of a software stack: a factor on the time of kernels, or
# the time of a launch in s; what it was fitted to; and how far predictions were from rows whose model was left out.
# Nothing here is of a model.
"""


def read_cases(source: Path, config: Path, say: Callable[[str], None] | None = None) -> list[Case]:
    """Return the rows of a table that have a step time and can be simulated.

    Args:
        source: CSV with the columns of `triplepoint predict` and `step_time_s`.
        config: Folder of the configuration.
        say: Told of every row that is passed over, and why.

    Raises:
        UserError: If the table cannot be read or has no step times.
    """
    found = []
    table = read_table(source)
    if table and "step_time_s" not in table[0]:
        raise UserError(f"{source}: no column step_time_s; calibration needs measured times")
    for number, cells in enumerate(table, 1):
        row = read_row(cells, number, config)
        reason = row.reason
        try:
            measured = read_number("step_time_s", cells.get("step_time_s", ""))
            if row.job is not None and measured:
                found.append(make_case(row.id, settle(row), measured, config))
                continue
            reason = reason or "no step_time_s"
        except (UserError, UnreadableError) as error:
            reason = str(error)
        if say:
            say(f"{source}: {row.id} passed over: {reason}")
    return found


def calibrate_tables(
    sources: Sequence[Path],
    target: Path,
    config: Path,
    stacks: Sequence[str] | None,
    max_gpus: int | None,
    say: Callable[[str], None],
) -> str:
    """Fit constants to tables, write them, and return one line on them.

    Args:
        sources: Tables of measured step times.
        target: YAML file to write, whole or not.
        config: Folder of the configuration.
        stacks: Words of which one must stand in the framework's name; None for all.
        max_gpus: Most GPUs of a row; None for any.
        say: Told of rows that are passed over.

    Raises:
        UserError: If a table cannot be read, or no row is left.
    """
    cases = [
        case for source in sources for case in read_cases(source, config, say) if _is_named(case, stacks, max_gpus)
    ]
    if not cases:
        raise UserError(f"no row left of {', '.join(map(str, sources))}; widen --stack or --max-gpus")
    words = [", ".join(str(source) for source in sources)]
    words += [f"frameworks with {' or '.join(stacks)}"] if stacks else []
    words += [f"{max_gpus} GPUs or fewer"] if max_gpus else []
    fitted = fit(cases, "; ".join(words), config).fitted
    text = yaml.safe_dump(fitted.model_dump(), sort_keys=False, width=118, default_flow_style=None)
    write_text(target, _HEADER + text)
    return f"calibrate: {len(fitted.stacks)} stacks from {len(cases)} rows to {target}, quantile {fitted.quantile:.2f}"


def _is_named(case: Case, stacks: Sequence[str] | None, max_gpus: int | None) -> bool:
    is_stack = not stacks or any(word.lower() in case.job.stack.lower() for word in stacks)
    return is_stack and (max_gpus is None or case.job.num_gpus <= max_gpus)
