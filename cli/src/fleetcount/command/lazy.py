"""A command group that imports a sub-command only when it is called, and refuses an option given twice.

`--help` of the group reads the table alone, so that starting a device does not load NumPy, gRPC or a database.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from fleetcount.command.exits import missing_package


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

    def load(self) -> click.Command:
        """Import the module and return the command.

        Raises:
            click.UsageError: the module needs an extra that is not installed.
        """
        try:
            command: click.Command = getattr(importlib.import_module(self.module), self.attribute)
        except ModuleNotFoundError as error:
            if needed := missing_package(error):
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
        return entry.load() if entry is not None and entry.exists else None

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
    from fleetcount.command.examples import EXAMPLES  # Only help pays for this import.

    if example := EXAMPLES.get(ctx.command_path.partition(" ")[2]):
        with formatter.section("Example"):
            formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in example.splitlines()))


def _meant(given: object, known: Sequence[str]) -> str:
    from fleetcount_mechanisms.errors import did_you_mean  # Only a wrong name pays for this import.

    return did_you_mean(given, known)


def table(rows: Sequence[tuple[str, str, str, str]]) -> dict[str, LazyCommand]:
    """Return the lazy table of (name, module, attribute, help) rows."""
    return {name: LazyCommand(module=module, attribute=attribute, help=text) for name, module, attribute, text in rows}
