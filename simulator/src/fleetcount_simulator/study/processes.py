"""Worker processes on this machine: started afresh, and ended in every case, after errors and interrupts too.

Knows no work: what is handed to them is the caller's.
"""

import multiprocessing
import signal
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

__all__ = ["worker_processes"]


@contextmanager
def worker_processes(workers: int) -> Generator[ProcessPoolExecutor]:
    """Give a pool of processes started afresh (spawn); on any early end the work under way ends with its processes."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_the_parent)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C, which a terminal sends to every process of the command: the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
