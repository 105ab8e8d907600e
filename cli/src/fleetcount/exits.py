"""Exit codes of the `fleetcount` command, and which error means which code.

It must not print or exit: `__main__` does.
"""

import enum
import errno
import sys
from typing import Final

import click
from fleetcount_protocol.errors import FleetcountError, MachineError, PeerError, UsageError

__all__ = ["CannotReachError", "CheckFailedError", "ExitCode", "RefusedByPolicyError", "describe", "one_line"]

MAX_LINE: Final = 500


class ExitCode(enum.IntEnum):
    """What the shell gets (README, "Exit codes")."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    CANNOT_REACH = 4
    MACHINE = 5
    INTERRUPTED = 130


class CheckFailedError(FleetcountError):
    """A check ran and found a miss (code 1)."""


class RefusedByPolicyError(FleetcountError):
    """A policy, a budget or the protocol does not allow it (code 3)."""


class CannotReachError(FleetcountError):
    """Another party does not answer (code 4)."""


_FAMILIES: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (CheckFailedError, ExitCode.CHECK_FAILED),
    (RefusedByPolicyError, ExitCode.REFUSED),
    (CannotReachError, ExitCode.CANNOT_REACH),
    (UsageError, ExitCode.USAGE),
    (PeerError, ExitCode.REFUSED),
    (MachineError, ExitCode.MACHINE),
    (click.ClickException, ExitCode.USAGE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (click.Abort, ExitCode.INTERRUPTED),
    (ConnectionError, ExitCode.CANNOT_REACH),
    (TimeoutError, ExitCode.CANNOT_REACH),
    (MemoryError, ExitCode.MACHINE),
)
# Families of packages that a small command never loads; looked up only where they are already loaded.
_OTHER_FAMILIES: Final = (
    ("fleetcount_mechanisms.errors", "MechanismError", ExitCode.USAGE),
    ("fleetcount_analysis.errors", "AnalysisError", ExitCode.USAGE),
    ("grpc", "RpcError", ExitCode.CANNOT_REACH),
    ("aiomqtt", "MqttError", ExitCode.CANNOT_REACH),
)
_UNREACHABLE: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})
_WRONG_PATH: Final = frozenset(
    {
        errno.ENOENT,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)


def describe(error: BaseException, command: str = "fleetcount") -> tuple[ExitCode, str]:
    """Return the exit code of an error and the one line that goes to stderr."""
    code = _code_of(error)
    hint = ""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else command
        hint = f" (try '{command} --help')"
    if isinstance(error, KeyboardInterrupt | click.Abort):
        text = "interrupted"
    elif isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif code is None:
        text = f"unexpected {type(error).__name__}: {error} (a bug; FLEETCOUNT_DEBUG=1 shows where)"
    else:
        text = str(error) or type(error).__name__
    return ExitCode.MACHINE if code is None else code, one_line(f"{command}: {text}{hint}")


def one_line(text: str) -> str:
    """Return a text as one printable line of bounded length; control characters become spaces."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    printable = " ".join(printable.split())
    return printable if len(printable) <= MAX_LINE else printable[: MAX_LINE - 1] + "…"


def _code_of(error: BaseException) -> ExitCode | None:
    for family, code in _FAMILIES:
        if isinstance(error, family):
            return code
    for module, name, code in _OTHER_FAMILIES:
        other: object = getattr(sys.modules.get(module), name, None)
        if isinstance(other, type) and isinstance(error, other):
            return code
    if isinstance(error, OSError):
        if error.errno in _UNREACHABLE:
            return ExitCode.CANNOT_REACH
        return ExitCode.USAGE if error.errno in _WRONG_PATH else ExitCode.MACHINE
    return None
