"""A table of a configuration as a frozen value: every field says how its key is read, and what stands in its place.

`@settings` makes the class, `setting` a field, `read_settings` a value from a table. Each party defines its own
keys.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, dataclass_transform

from fleetcount_transport.toml_table import ConfigError, Source, Table, Variable
from fleetcount_transport.toml_values import nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PREFIX: Final = "FLEETCOUNT_"
_READ: Final = "read"
ClassT = TypeVar("ClassT")
SettingsT = TypeVar("SettingsT", bound="DataclassInstance")
ValueT = TypeVar("ValueT")


class InconsistentError(ConfigError):
    """Values that are allowed each for itself and not together; the message starts with a dotted key."""


def setting(read: Callable[..., ValueT], *arguments: object, default: Any = MISSING) -> ValueT:
    """Return the field of a key that `read(table, key, *arguments)` reads; without a default it must be given."""

    def from_table(table: Table, key: str) -> ValueT:
        return read(table, key, *arguments)

    made: Any = field(default=default, metadata={_READ: from_table})
    return made  # type: ignore[no-any-return]  # dataclasses type a field as its value, too.


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def settings(cls: type[ClassT]) -> type[ClassT]:
    """Make a class of `setting` fields a frozen dataclass."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def read_settings(root: Table, key: str, cls: type[SettingsT]) -> SettingsT:
    """Return the settings of a sub-table; an absent one has every default.

    Raises:
        ConfigError: a key is unknown, missing or out of range.
    """
    return _read_row(root.section(key, [one.name for one in fields(cls)]), cls)


def read_rows(root: Table, key: str, cls: type[SettingsT], *, most: int) -> tuple[SettingsT, ...]:
    """Return the settings of one to `most` tables of an array.

    Raises:
        ConfigError: none, too many, or a key is unknown, missing or out of range.
    """
    known = [one.name for one in fields(cls)]
    return tuple(_read_row(row, cls) for row in root.sections(key, known, least=1, most=most))


@contextlib.contextmanager
def blamed_on(source: Source) -> Generator[None]:
    """Put the file's name before what does not fit together in it."""
    try:
        yield
    except InconsistentError as error:
        raise ConfigError(f"{source.name}: {error}") from None


def overridden(
    root: Table, tables: Collection[str], environment: Mapping[str, str], file_alone: tuple[str, ...]
) -> Table:
    """Return a file's root table with the values of FLEETCOUNT_<TABLE>__<KEY> variables in place of its own.

    Raises:
        ConfigError: a variable for one of the `file_alone` tables, for a whole table, or for one that is not known.
    """
    content = {name: dict(value) if isinstance(value, dict) else value for name, value in root.content.items()}
    for name, text in sorted(environment.items()):
        if not name.upper().startswith(PREFIX):
            continue
        table, separator, key = name[len(PREFIX) :].lower().partition("__")
        if table in file_alone:
            raise ConfigError(f"{name}: [{table}] comes from the file alone, never from a variable")
        if separator and table not in tables:
            raise ConfigError(f"{name}: the table {table!r} is unknown; {nearest(table, tables)}")
        if table in tables:
            if not separator:
                raise ConfigError(f"{name} is a whole table; allowed is one key of it, {name}__<KEY>")
            values = content.setdefault(table, {})
            if isinstance(values, dict):  # Anything else is refused where it is read.
                values[key] = Variable(name, text)
    return Table(root.source, "", content, None)


def _read_row(table: Table, cls: type[SettingsT]) -> SettingsT:
    """Return the settings of a table whose keys have been checked.

    Raises:
        ConfigError: a key is missing or out of range.
    """
    wanted = [one for one in fields(cls) if table.has(one.name) or one.default is MISSING]
    values = {one.name: one.metadata[_READ](table, one.name) for one in wanted}
    with blamed_on(table.source):
        return cls(**values)
