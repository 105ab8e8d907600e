"""How the kernel's functions become machine code, and where the machine code is kept.

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
"""Environment variables that name a place for caches, the first that is set wins; systemd sets the second."""

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Let compiled functions call `function`; it releases Python's lock and does not check indices."""
    return cast("Function", _numba.njit(**_OPTIONS)(function))


def entry_point(function: Function) -> Function:
    """Let Python call `function`, after `make_ready`; it keeps to what `compiled` says."""
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
    """Return what the processor that is compiled for can do, as LLVM writes it: "+avx2,-avx512f" and so on."""
    chosen = _numba.config.CPU_FEATURES
    return str(_codegen.get_host_cpu_features() if chosen is None else chosen)


def make_ready(entry: Callable[..., Any], call: Callable[[], object]) -> None:
    """Load an entry point, or compile and keep it; `call` must call it with arguments of the types it is meant for.

    Without a place to keep compiled code every process compiles for itself, and the log says so.
    """
    dispatcher: Any = entry
    if dispatcher.signatures:
        return
    name, directory = dispatcher.py_func.__name__, cache_directory()
    if directory is None:
        _log.warning("compiling %s, about half a minute; there is no directory of this user's to keep it in", name)
        call()
        return
    with _alone(directory):
        known = any(directory.glob(f"*/*.{name}-*.nbc"))
        if not known:
            _log.warning("compiling %s for this machine, about half a minute, once; kept in %s", name, directory)
        start = time.monotonic()
        with _numba_caches_in(directory):
            dispatcher.enable_caching()
        call()
        if not known:
            _log.warning("compiled %s in %.0f s", name, time.monotonic() - start)


@lru_cache(maxsize=1)
def cache_directory() -> Path | None:
    """Return the directory for compiled code, made if need be; None when no place is this user's alone."""
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
    """Return a short name for everything that machine code depends on."""
    processor = _numba.config.CPU_NAME or _binding.get_host_cpu_name()
    llvm = str(_binding.llvm_version_info)
    parts = (sys.implementation.cache_tag, _numba.__version__, llvm, processor, target_features())
    digest = hashlib.sha256("\n".join(map(str, parts)).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(directory: Path) -> Generator[None]:
    """Let one process at a time compile: the others then find its result."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _numba_caches_in(directory: Path) -> Generator[None]:
    """Point Numba's cache at the directory while an entry point is told where its own is, and back."""
    before = _numba.config.CACHE_DIR
    _numba.config.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        _numba.config.CACHE_DIR = before
