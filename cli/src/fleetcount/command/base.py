"""What every command is made with: groups that load on demand, examples, results as JSON, exit codes and errors."""

import enum
import errno
import importlib
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import click
from fleetcount_protocol.errors import FleetcountError, MachineError, PeerError, UsageError

# Exit codes of the `fleetcount` command, and which error means which code.
#
# It must not print or exit: `__main__` does.

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
_OWN: Final = re.compile(r"fleetcount(?:-client)?\[(?P<extras>[a-z0-9, ]+)\]")
_WHOLE_EXTRAS: Final = {
    "demo": "all",
    "simulate": "simulator",
    "reproduce": "all",
    "audit": "all",
    "aggregator": "aggregator",
    "relay": "aggregator",
    "plan": "analysis",
    "remap": "analysis",
    "microdata": "analysis",
    "publish": "site",
    "serve": "site",
}
"""The extra with everything that a command needs: named at once, not one package after the other."""
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
    error = interruption_of(error) or error
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
    elif isinstance(error, ModuleNotFoundError) and (needed := missing_package(error, command)):
        code, text = ExitCode.USAGE, needed
    elif code is None:
        text = f"unexpected {type(error).__name__}: {error} (a bug; FLEETCOUNT_DEBUG=1 shows where)"
    else:
        text = str(error) or type(error).__name__
    return ExitCode.MACHINE if code is None else code, one_line(f"{command}: {text}{hint}")


def interruption_of(error: BaseException) -> BaseException | None:
    """Return the Ctrl-C that an error is, or was raised from; None where nobody interrupted."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and not isinstance(cause, KeyboardInterrupt | click.Abort):
        if id(cause) in seen:  # An error may be raised from itself, or from one that was raised from it.
            return None
        seen.add(id(cause))
        # CPython 3.11 raises RuntimeError from whatever ends a __set_name__, also from an interruption of an import.
        cause = cause.__cause__
    return cause


def missing_package(error: ModuleNotFoundError, command: str = "") -> str:
    """Return the text that says what to install for a missing library, "" for a module of our own.

    Where `command`, as in "fleetcount demo", needs an extra as a whole that brings the library, it names that one.
    """
    module = (error.name or "").partition(".")[0]
    if not module or module.startswith("fleetcount"):
        return ""
    package = _PACKAGES.get(module, module.replace("_", "-"))
    project, required = _requirements()
    found = [match for one in required if (match := _REQUIRED.match(one)) and match["package"] == package]
    extras = [match["extra"] for match in found]
    whole = _WHOLE_EXTRAS.get(command.removeprefix("fleetcount ").partition(" ")[0], "")
    if None in extras:
        what = f"install {project} anew, without it nothing of it runs"
    elif whole and package in _brought_by(whole, required):
        what = f"pip install '{project}[{whole}]'"
    elif wanted := set(extras) - _DEVELOPERS:
        sizes = Counter(match["extra"] for one in required if (match := _REQUIRED.match(one)))
        what = f"pip install '{project}[{min(wanted, key=lambda name: (sizes[name], name))}]'"
    else:
        what = f"pip install {package}"
    return f"{command or 'this'} needs the Python package {package!r}: {what} (in a clone: make setup)"


def _brought_by(extra: str, required: Sequence[str]) -> frozenset[str]:
    """Return the packages of an extra and of those that it names itself, as in fleetcount[grpc,mqtt]."""
    rows = [match for one in required if (match := _REQUIRED.match(one)) and match["extra"] == extra]
    inner = [name for row in rows if (own := _OWN.match(row.string)) for name in own["extras"].split(",")]
    return frozenset(row["package"] for row in rows).union(*(_brought_by(name.strip(), required) for name in inner))


def _requirements() -> tuple[str, list[str]]:
    """Return the name of the installed distribution and its requirements."""
    from importlib.metadata import PackageNotFoundError, requires  # Takes milliseconds, and is needed here alone.

    for project in ("fleetcount", "fleetcount-client"):
        try:
            return project, requires(project) or []
        except PackageNotFoundError:
            continue
    return "fleetcount", []


def one_line(text: str, most: int = MAX_LINE) -> str:
    """Return a text as one printable line of at most so many characters; control characters become spaces."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    printable = " ".join(printable.split())
    return printable if len(printable) <= most else printable[: most - 1] + "…"


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


# What a command prints: lines for people, or one JSON document.
#
# It must not decide what a result is.

JSON: Final = click.option(
    "--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output."
)
EXPLAIN: Final = click.option("--explain", is_flag=True, help="Add the statement in full: every adversary.")


def show(result: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as one JSON document, or its lines for people, each as one line of the terminal.

    `result` is not looked at where lines are wanted, and lines are not made where JSON is.
    """
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
        return
    for line in lines:
        click.echo(_printable(line))


def aligned(rows: Sequence[Sequence[str]], left: int = 1, most: int = MAX_LINE) -> list[str]:
    """Return rows of cells as lines in columns: the first `left` to the left, of at most `most` characters, as texts;
    the others to the right, as numbers.
    """
    texts = [[one_line(cell, most if place < left else MAX_LINE) for place, cell in enumerate(row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    padded = (
        [cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in enumerate(row)]
        for row in (zip(row, widths, strict=True) for row in texts)
    )
    return ["  ".join(row).rstrip() for row in padded]


def _printable(line: str) -> str:
    """Return a line with its blanks, which align columns; one that does not print goes through `one_line`."""
    return line if line.isprintable() else one_line(line)


# An example of every command, and of every group by one of its commands, as `--help` shows it.


DEVICE_EXAMPLES: Final = {
    "device": "fleetcount device run --config device.toml",
    "device question": "fleetcount device question list --config device.toml",
    "device new": "fleetcount device new car-17 alpha.descriptor.toml beta.descriptor.toml",
    "device run": "fleetcount device run --config device.toml",
    "device ledger": "fleetcount device ledger --config device.toml",
    "device status": "fleetcount device status --config device.toml",
    "device spool": "fleetcount device spool --config device.toml",
    "device log": "fleetcount device log --config device.toml",
    "device question list": "fleetcount device question list --config device.toml",
    "device question join": "fleetcount device question join --config device.toml 'Where are you now?'",
    "device question leave": "fleetcount device question leave --config device.toml 'Where are you now?'",
    "device question reserved": "fleetcount device question reserved --config device.toml",
}
"""Of the commands that a device has; those of all others are in `examples`, which it does not install."""


def example_of(command: str) -> str | None:
    """Return the example of a command, as "question create", None of one that has none."""
    if command in DEVICE_EXAMPLES:
        return DEVICE_EXAMPLES[command]
    try:
        examples = importlib.import_module("fleetcount.command.examples")
    except ModuleNotFoundError:
        return None
    return cast("dict[str, str]", examples.EXAMPLES).get(command)


# A command group that imports a sub-command only when it is called, and refuses an option given twice.
#
# `--help` of the group reads the table alone, so that starting a device does not load NumPy, gRPC or a database.


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """Where a sub-command lives and its line in the group's help."""

    module: str
    attribute: str
    help: str

    @property
    def exists(self) -> bool:
        """Whether the module is part of this installation: `fleetcount-client` has fewer."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # Its folder is not there either.
            return False

    def load(self, path: str = "") -> click.Command:
        """Import the module and return the command, which is called `path`, as in "fleetcount demo".

        Raises:
            click.UsageError: the module needs an extra that is not installed.
        """
        try:
            command: click.Command = getattr(importlib.import_module(self.module), self.attribute)
        except ModuleNotFoundError as error:
            if needed := missing_package(error, path):
                raise click.UsageError(needed) from error
            raise
        return command


class OneOf(click.Choice[str]):
    """One of a few texts; another one is refused with the nearest of them."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the error message for another text."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + _meant(value, self.choices)


class StrictCommand(click.Command):
    """A command that refuses a single-valued option given twice instead of taking the last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, after looking for repeated options."""
        if not ctx.resilient_parsing:
            self._refuse_repeated(ctx, list(args))
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example of the command after its options."""
        _write_example(ctx, formatter)
        super().format_epilog(ctx, formatter)

    def _refuse_repeated(self, ctx: click.Context, args: list[str]) -> None:
        order = self.make_parser(ctx).parse_args(args=args)[2]
        single = [p for p in order if isinstance(p, click.Option) and not (p.multiple or p.count or p.is_eager)]
        for option in single:
            if single.count(option) > 1:
                raise click.UsageError(f"option '{option.opts[0]}' is given twice", ctx=ctx)


class LazyGroup(click.Group):
    """A group whose sub-commands are named in a table and imported when called."""

    def __init__(self, *, lazy: dict[str, LazyCommand], **settings: Any) -> None:
        # A missing sub-command is one error line, not a page of help on stderr.
        settings.setdefault("no_args_is_help", False)
        super().__init__(**settings)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order, without those this installation does not have."""
        return [name for name, entry in self._lazy.items() if entry.exists]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a sub-command, importing it now."""
        entry = self._lazy.get(cmd_name)
        return entry.load(f"{ctx.command_path} {cmd_name}") if entry is not None and entry.exists else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; an unknown one is refused with the nearest of the table."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            if args[0] in self._lazy:
                missing = f"{args[0]!r} comes with fleetcount, and this is fleetcount-client alone: install fleetcount"
                raise click.UsageError(missing, ctx=ctx)
            raise click.UsageError(f"No such command {args[0]!r}{_meant(args[0], self.list_commands(ctx))}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name].help) for name in self.list_commands(ctx)])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write an example of one of its commands after their list."""
        _write_example(ctx, formatter)
        super().format_epilog(ctx, formatter)


def _write_example(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    if example := example_of(ctx.command_path.partition(" ")[2]):
        with formatter.section("Example"):
            formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in example.splitlines()))


def _meant(given: object, known: Sequence[str]) -> str:
    from fleetcount_mechanisms.errors import did_you_mean  # Only a wrong name pays for this import.

    return did_you_mean(given, known)


def table(rows: Sequence[tuple[str, str, str, str]]) -> dict[str, LazyCommand]:
    """Return the lazy table of (name, module, attribute, help) rows."""
    return {name: LazyCommand(module=module, attribute=attribute, help=text) for name, module, attribute, text in rows}
