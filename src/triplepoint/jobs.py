"""Work shared out to processes of this machine."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from triplepoint.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_processes(do: Callable[[Task], Result], tasks: Sequence[Task], num_jobs: int, doing: str) -> Iterator[Result]:
    """Yield the result of every task, in their order.

    Args:
        do: What is done with a task: a function of a module, since other processes have to find it.
        tasks: The tasks.
        num_jobs: Processes to use; with 1 it is done in this one.
        doing: What `do` does, for the error.

    Raises:
        UserError: If one of the processes was killed; and what `do` raises.
    """
    num_jobs = min(num_jobs, len(tasks))
    if num_jobs <= 1:
        yield from map(do, tasks)
        return
    with ProcessPoolExecutor(num_jobs) as pool:
        try:
            yield from pool.map(do, tasks)
        except BrokenProcessPool:
            raise UserError(f"a process {doing} was killed (out of memory?); run again with --jobs 1") from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
