"""Exit codes of the `fleetcount` command, and which error means which code.

It must not print or exit: `__main__` does.
"""

import enum
import errno
import re
import sys
from collections import Counter
from typing import Final

import click
from fleetcount_protocol.errors import FleetcountError, MachineError, PeerError, UsageError

MAX_LINE: Final = 1000


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
_PACKAGES: Final = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "dask": "distributed",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "libsumo": "eclipse-sumo",
    "pkcs11": "python-pkcs11",
    "sumo": "eclipse-sumo",
    "sumolib": "eclipse-sumo",
}
"""Modules whose package has another name."""
_REQUIRED: Final = re.compile(
    r"""(?P<package>[A-Za-z0-9._-]+)[^;]*(?:$|;(?:.* and )? ?extra == ['"](?P<extra>[a-z0-9]+)['"]$)"""
)
_DEVELOPERS: Final = frozenset({"check", "docs", "nightly", "test"})
"""Extras for developers: no user is told to install them."""
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
    elif isinstance(error, ModuleNotFoundError) and (needed := missing_package(error)):
        code, text = ExitCode.USAGE, needed
    elif code is None:
        text = f"unexpected {type(error).__name__}: {error} (a bug; FLEETCOUNT_DEBUG=1 shows where)"
    else:
        text = str(error) or type(error).__name__
    return ExitCode.MACHINE if code is None else code, one_line(f"{command}: {text}{hint}")


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the text that names the package to install for a missing library, "" for a module of our own."""
    module = (error.name or "").partition(".")[0]
    if not module or module.startswith("fleetcount"):
        return ""
    package = _PACKAGES.get(module, module.replace("_", "-"))
    project, required = _requirements()
    found = [match for one in required if (match := _REQUIRED.match(one)) and match["package"] == package]
    extras = [match["extra"] for match in found]
    if None in extras:
        what = f"install {project} anew, without it nothing of it runs"
    elif wanted := set(extras) - _DEVELOPERS:
        sizes = Counter(match["extra"] for one in required if (match := _REQUIRED.match(one)))
        what = f"install {project}[{min(wanted, key=lambda name: (sizes[name], name))}]"
    else:
        what = f"install {package}"
    return f"this needs the Python package {package!r}: {what} (in a clone: make setup)"


def _requirements() -> tuple[str, list[str]]:
    """Return the name of the installed distribution and its requirements."""
    from importlib.metadata import PackageNotFoundError, requires  # Takes milliseconds, and is needed here alone.

    for project in ("fleetcount", "fleetcount-client"):
        try:
            return project, requires(project) or []
        except PackageNotFoundError:
            continue
    return "fleetcount", []


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
