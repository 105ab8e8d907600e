"""How a worker process begins and ends: what it protects, how it uses memory, what it loads before it is needed."""

import importlib
import multiprocessing
import os
import signal
import threading

from fleetcount_transport.hardening import keep_out_of_dumps

from fleetcount_aggregator.host.malloc import keep_batches


def begin_worker() -> None:
    """Leave Ctrl-C and SIGTERM to the parent, and end with it, even when it is killed; leave no dump of the shares."""
    keep_out_of_dumps()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_batches()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()


def warm_up() -> None:
    """Import what makes a record, before the first release waits for it."""
    for name in ("fleetcount_aggregator.release.record", "fleetcount_analysis.reading"):
        importlib.import_module(name)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
