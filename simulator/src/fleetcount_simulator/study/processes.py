"""Worker processes on this machine: started afresh, and ended in every case, after errors and interrupts too.

It does not know the work: the caller gives the function and the jobs.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from fleetcount_simulator.errors import ProcessError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


def carry_out(work: Callable[[JobT], ResultT], jobs: Sequence[JobT], workers: int) -> Iterator[tuple[JobT, ResultT]]:
    """Yield every job with the result of `work`, in any order, from up to `workers` processes.

    `work` is a function of a module; jobs and results are pickled. An exception of `work` is raised here, with the
    worker's traceback as a note. When the caller stops early, the processes end with their jobs.

    Raises:
        ProcessError: a worker died.
    """
    waiting = iter(jobs)
    busy: dict[Connection, JobT] = {}
    with ExitStack() as started:
        for job in islice(waiting, workers):
            pipe = _start(work, started)
            busy[pipe] = job
            _send(pipe, job)
        while busy:
            ready = wait(list(busy))
            for pipe in [one for one in busy if one in ready]:
                result = _received(pipe)
                done = busy.pop(pipe)
                for job in islice(waiting, 1):
                    busy[pipe] = job
                    _send(pipe, job)
                yield done, result


def _start(work: Callable[[Any], Any], started: ExitStack) -> Connection:
    """Return a pipe to a new worker, which ends with the stack.

    Each worker has a pipe of its own, and only the worker has its end: when it dies in the middle of a result, the pipe
    ends. On a queue that all share (`concurrent.futures`) the reader would wait for the rest for ever.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    started.callback(ours.close)
    started.callback(process.join)
    started.callback(process.terminate)
    return ours


def _send(pipe: Connection, job: Any) -> None:
    with suppress(ConnectionError):  # The worker died: `_received` raises ProcessError.
        pipe.send(job)


def _received(pipe: Connection) -> Any:
    try:
        good, result = pipe.recv()
    except (EOFError, OSError) as error:
        raise ProcessError("a worker process died (out of memory?); use fewer") from error
    if not good:
        raise result
    return result


def _serve(work: Callable[[Any], Any], pipe: Connection) -> None:
    """Do the jobs of the pipe until it ends, in a worker; it ends also when the parent was killed."""
    # A terminal sends Ctrl-C to every process of the command: the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = True, work(job)
        except Exception as error:  # The caller raises it.
            error.add_note(traceback.format_exc())
            answer = False, error
        pipe.send(answer)
