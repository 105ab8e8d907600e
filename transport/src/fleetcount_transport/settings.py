"""A table of a configuration as a frozen dataclass: a field is a key with its type, range, default and explanation.

`@settings` makes the class, `setting` a field; `read_settings`, `read_rows` and `read_table` read tables.
`__post_init__` refuses keys that do not fit each other, with `UnfitKeyError`. Each party defines its own keys.
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
_WORDS: Final = "words"
ClassT = TypeVar("ClassT")
SettingsT = TypeVar("SettingsT", bound="DataclassInstance")
ValueT = TypeVar("ValueT")


class InconsistentError(ConfigError):
    """Values that are allowed separately, but not together; the message starts with a dotted key."""


class UnfitKeyError(ConfigError):
    """A key that does not fit the others of its table: what is `allowed` in its place, or the `problem` with it."""

    def __init__(self, key: str, *, allowed: str = "", problem: str = "") -> None:
        super().__init__(f"{key} {problem or f'does not fit; allowed is {allowed}'}")
        self.key = key
        self.allowed = allowed
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a table: its name, what it means (unit, range, default), and an example as TOML."""

    name: str
    about: str
    example: str


def setting(
    read: Callable[..., ValueT], *arguments: object, default: Any = MISSING, about: str = "", example: str = ""
) -> ValueT:
    """Return the field of a key that `read(table, key, *arguments)` reads; without a default it must be given.

    `about` and `example` are for people; `keys_of` returns them.
    """

    def from_table(table: Table, key: str) -> ValueT:
        return read(table, key, *arguments)

    made: Any = field(default=default, metadata={_READ: from_table, _WORDS: (about, example)})
    return made  # type: ignore[no-any-return]  # dataclasses type a field as its value, too.


def insecure(table: Table, key: str) -> bool:
    """Read whether plaintext is meant: not beside an authority, which means TLS."""
    if (meant := table.boolean(key)) and table.has("ca_file"):
        raise table.refuse(key, "only without ca_file")
    return meant


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def settings(cls: type[ClassT]) -> type[ClassT]:
    """Make a class of `setting` fields a frozen dataclass."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def names_of(cls: type["DataclassInstance"]) -> tuple[str, ...]:
    """Return the names of the keys, in their order."""
    return tuple(one.name for one in fields(cls))


def keys_of(cls: type["DataclassInstance"]) -> tuple[Key, ...]:
    """Return the keys with their explanations, in their order."""
    words = {one.name: one.metadata[_WORDS] for one in fields(cls)}
    return tuple(Key(name=name, about=about, example=example) for name, (about, example) in words.items())


def read_settings(root: Table, key: str, cls: type[SettingsT]) -> SettingsT:
    """Return the settings of a sub-table; an absent one has every default.

    Raises:
        ConfigError: a key is unknown, missing or out of range.
    """
    return read_table(root.section(key, names_of(cls)), cls)


def read_rows(
    root: Table, key: str, cls: type[SettingsT], *, most: int, least: int = 1, what: str = "tables"
) -> tuple[SettingsT, ...]:
    """Return the settings of `least` to `most` tables of an array; `what` names them in a refusal.

    Raises:
        ConfigError: too few, too many, or a key is unknown, missing or out of range.
    """
    return tuple(read_table(row, cls) for row in root.sections(key, names_of(cls), least=least, most=most, what=what))


@contextlib.contextmanager
def blamed_on(source: Source) -> Generator[None]:
    """Add the file's name to an InconsistentError.

    Raises:
        ConfigError: in place of an InconsistentError.
    """
    try:
        yield
    except InconsistentError as error:
        raise ConfigError(f"{source.name}: {error}") from None


@contextlib.contextmanager
def refused_by(table: Table) -> Generator[None]:
    """Add line, dotted key and value to an UnfitKeyError.

    Raises:
        UsageError: in place of an UnfitKeyError; of the class that the table's source names.
    """
    try:
        yield
    except UnfitKeyError as error:
        refusal = table.refuse(error.key, error.allowed) if error.allowed else table.wrong(error.key, error.problem)
        raise refusal from None


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
            if isinstance(values, dict):  # Any other value is refused when the table is read.
                values[key] = Variable(name, text)
    return Table(root.source, "", content, None)


def read_table(table: Table, cls: type[SettingsT], **derived: object) -> SettingsT:
    """Return the settings of a table whose keys have been checked to be known; `derived` values are not read from it.

    Raises:
        UsageError: a key is missing, out of range or does not fit another; of the class that the table's source names.
    """
    wanted = [one for one in fields(cls) if table.has(one.name) or one.default is MISSING]
    values = {one.name: one.metadata[_READ](table, one.name) for one in wanted if one.name not in derived}
    with blamed_on(table.source), refused_by(table):
        return cls(**values, **derived)
