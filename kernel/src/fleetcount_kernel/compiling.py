"""Compilation of the kernel's functions to machine code, and the cache of that code.

`compiled` marks a function that other compiled functions call; `entry_point` one that Python calls; `kept` either, if
it is short to compile. The first process on a machine compiles an entry point, which takes a while, says so in the log,
and keeps the result in a directory of the user's; later processes load it. The directory's name changes with the
kernel's source, Numba's version and the processor, so nothing stale is ever loaded. Compiled code is loaded only from a
directory that belongs to this user and that nobody else may write. Never compiles at import.
"""

import fcntl
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar, cast

_numba: Any = import_module("numba")
_binding: Any = import_module("llvmlite.binding")
_codegen: Any = import_module("numba.core.codegen")

_log: Final = logging.getLogger("fleetcount.kernel")
_OPTIONS: Final = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
_PARENTS: Final = (("NUMBA_CACHE_DIR", ""), ("CACHE_DIRECTORY", ""), ("XDG_CACHE_HOME", ""), ("HOME", ".cache"))
"""Environment variables with a directory for caches, and the path below it; the first that is set wins. systemd sets
the second."""

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return `function` compiled, for calls from compiled functions; it releases Python's lock and checks no index."""
    return cast("Function", _numba.njit(**_OPTIONS)(function))


def entry_point(function: Function) -> Function:
    """Return `function` compiled, for calls from Python after `make_ready`; otherwise as `compiled`."""
    return compiled(function)


def kept(function: Function) -> Function:
    """Compile `function` when it is first called and keep its code, for a loop that is short to compile.

    Numba compares the code that it kept with the time and the size of the source. Without a place to keep it every
    process compiles for itself.
    """
    dispatcher: Any = compiled(function)
    directory = cache_directory()
    if directory is not None:
        with _numba_caches_in(directory):
            dispatcher.enable_caching()
    return cast("Function", dispatcher)


def target_features() -> str:
    """Return the features of the target processor as LLVM writes them, such as "+avx2,-avx512f"."""
    chosen = _numba.config.CPU_FEATURES
    return str(_codegen.get_host_cpu_features() if chosen is None else chosen)


def make_ready(entry: Callable[..., Any], call: Callable[[], object]) -> None:
    """Load an entry point, or compile and store it; `call` must call it with arguments of the right types.

    Without a cache directory every process compiles for itself, with a warning in the log.
    """
    dispatcher: Any = entry
    if dispatcher.signatures:
        return
    name, directory = dispatcher.py_func.__name__, cache_directory()
    if directory is None:
        _log.warning("compiling %s, about half a minute; this user has no cache directory to store it in", name)
        call()
        return
    with _alone(directory):
        known = any(directory.glob(f"*/*.{name}-*.nbc"))
        if not known:
            _log.warning("compiling %s for this machine, about half a minute, once; stored in %s", name, directory)
        start = time.monotonic()
        with _numba_caches_in(directory):
            dispatcher.enable_caching()
        call()
        if not known:
            _log.warning("compiled %s in %.0f s", name, time.monotonic() - start)


@lru_cache(maxsize=1)
def cache_directory() -> Path | None:
    """Return the directory for compiled code, created if missing; None without one that only this user may write."""
    for variable, below in _PARENTS:
        parent = os.environ.get(variable)
        if not parent:
            continue
        directory = Path(parent) / below / "fleetcount" / f"kernel-{_fingerprint()}"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = directory.stat()
        except OSError:
            return None
        ours_alone = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        return directory if ours_alone and os.access(directory, os.W_OK) else None
    return None


def _fingerprint() -> str:
    """Return a hash, 16 hexadecimal digits, of all inputs of the machine code: source, versions, processor."""
    processor = _numba.config.CPU_NAME or _binding.get_host_cpu_name()
    llvm = str(_binding.llvm_version_info)
    parts = (sys.implementation.cache_tag, _numba.__version__, llvm, processor, target_features())
    digest = hashlib.sha256("\n".join(map(str, parts)).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(directory: Path) -> Generator[None]:
    """Hold a file lock, so that one process compiles and the others then load its result."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _numba_caches_in(directory: Path) -> Generator[None]:
    """Set Numba's cache directory while `enable_caching` of an entry point reads it, and restore it."""
    before = _numba.config.CACHE_DIR
    _numba.config.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        _numba.config.CACHE_DIR = before
