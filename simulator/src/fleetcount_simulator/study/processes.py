"""Worker processes on this machine: started afresh, and ended in every case, after errors and interrupts too.

Knows no work: what is handed to them is the caller's.
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
    """Yield every job with what `work` makes of it, in any order, from up to `workers` processes.

    `work` is a function of a module; jobs and results are pickled. What `work` raises is raised here, with the
    worker's traceback as a note. On any early end the work under way ends with its processes.

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

    Each has a pipe of its own, of which nobody else holds the worker's end: one that dies in the middle of a result
    ends its pipe. On a queue that all share (`concurrent.futures`), its reader waits for the rest without end.
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
    with suppress(ConnectionError):  # Of a worker that died, which is said where its result is waited for.
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
    """Do what the pipe brings until it ends, in a worker; whoever started it may be killed and say nothing."""
    # A terminal sends Ctrl-C to every process of the command: the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = True, work(job)
        except Exception as error:  # Whatever it is belongs to the caller.
            error.add_note(traceback.format_exc())
            answer = False, error
        pipe.send(answer)
