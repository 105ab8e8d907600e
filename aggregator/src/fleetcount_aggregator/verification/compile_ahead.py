"""Compiles the batch verifier ahead of the first window that needs it: in a process of its own, of low priority.

What is compiled is kept on disk (`fleetcount_kernel.compiling`), where the workers find it; a worker that needs it
earlier waits for the same compilation. The machine code is also compared with the scalar code here (`self_check`), so
that code which crashes a process crashes this one. Verifies no report and holds no key.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_bits, prio3_one_hot, prio3_two_round
from fleetcount_transport.logs import log

from fleetcount_aggregator.verification.choice import numba_is_of_use

Step = tuple[str, Callable[[], object]]
"""What is compiled or loaded, in words, and what does it; it must survive pickling."""

_CRASHES: Final = frozenset((signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT))
"""The signals that end a process whose machine code this processor cannot run, or that touches what is not its own."""

PATIENCE_S: Final = 600.0
"""How long compiling may take before who waits for it goes on without."""
_QUIET_S: Final = 5.0
"""A step that has only to load what was compiled before is done by then, and nothing is said of it."""
_NICENESS: Final = 5
_VALUES, _AGGREGATORS = 2, 2
_LEADER: Final = 0
_HELPER: Final = 1


def _is_kept() -> bool:
    """Return whether another process will find what this one compiles."""
    # Loaded only in the process that compiles: Numba takes a second and a hundred megabytes.
    try:
        from fleetcount_kernel.compiling import cache_directory
    except Exception:
        # Whatever loading a compiler can end with: who verifies meets it too, and says so.
        return False
    return cache_directory() is not None


def _verification(prio3: Prio3, aggregator: int) -> None:
    from fleetcount_aggregator.verification.self_check import may_verify  # As above.

    if _is_kept():
        may_verify(prio3, aggregator)


def _combination(prio3: Prio3) -> None:
    from fleetcount_aggregator.verification.self_check import may_combine  # As above.

    if _is_kept():
        may_combine(prio3)


def _steps() -> tuple[Step, ...]:
    kinds = (("two rounds", prio3_two_round), ("one-hot", prio3_one_hot), ("bits", prio3_bits))
    steps: list[Step] = []
    for name, new in kinds:
        prio3 = new(_VALUES, _AGGREGATORS)
        steps += [
            (f"{name} at a leader", partial(_verification, prio3, _LEADER)),
            (f"{name} at a helper", partial(_verification, prio3, _HELPER)),
            (f"{name}, combined", partial(_combination, prio3)),
        ]
    return tuple(steps)


STEPS: Final = _steps()
"""Every kind of window on either side; the kernel knows which of them share machine code."""


def _say_in_log(what: str, step: int, of: int) -> None:
    log.info("compiling_batch_verifier", what=what, step=step, of=of)


async def compile_ahead(
    steps: Sequence[Step] = STEPS, *, patience_s: float = PATIENCE_S, say: Callable[[str, int, int], None] = _say_in_log
) -> bool:
    """Compile and try out what verification needs; return False if that crashed the process.

    Tells `say` what a step that takes long is, its number and how many there are. What takes longer than `patience_s`
    is ended: then the workers compile when they need it.
    """
    if not numba_is_of_use():
        return True
    reader, writer = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_compile, args=(writer, steps), name="compiling", daemon=True
    )
    process.start()
    writer.close()
    try:
        async with asyncio.timeout(patience_s):
            await _follow(reader, [name for name, _ in steps], say)
    except TimeoutError:
        log.error("batch_verifier_not_compiled", waited_s=patience_s)
    finally:
        await asyncio.shield(asyncio.to_thread(_end, process, reader))
    return not crashed(process)


def crashed(process: SpawnProcess) -> bool:
    """Return whether a process that has ended was ended by its own machine code."""
    code = process.exitcode
    return code is not None and -code in _CRASHES


async def _follow(reader: Connection, names: Sequence[str], say: Callable[[str, int, int], None]) -> None:
    """Say what the process is at, until it has ended."""
    loop = asyncio.get_running_loop()
    said: asyncio.Queue[int | None] = asyncio.Queue()

    def read() -> None:
        try:
            said.put_nowait(reader.recv())
        except (EOFError, OSError):
            loop.remove_reader(reader.fileno())
            said.put_nowait(None)

    loop.add_reader(reader.fileno(), read)
    try:
        number = await said.get()
        while number is not None:
            following = asyncio.ensure_future(said.get())
            if not (await asyncio.wait((following,), timeout=_QUIET_S))[0]:
                say(names[number], number + 1, len(names))
            number = await following
    finally:
        loop.remove_reader(reader.fileno())


def _end(process: SpawnProcess, reader: Connection) -> None:
    """Let the process end, or end it: it holds nothing that could be left half-done."""
    process.join(1)
    if process.exitcode is None:
        process.kill()
        process.join()
    reader.close()


def _compile(writer: Connection, steps: Sequence[Step]) -> None:
    """Do every step; the whole of the process. Ends when nobody follows it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    for number, (_, work) in enumerate(steps):
        try:
            writer.send(number)
        except OSError:
            return
        work()
