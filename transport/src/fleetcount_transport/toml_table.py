"""One table of a TOML file, read key by key: type, exact number, range and spelling.

Every refusal is one line: file, line when it is known, dotted key, value and what is allowed. It must not read the
content of a secret or decide what a key means.
"""

import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import ENDPOINT, LISTENER, AggregatorId, split_endpoint, split_listener
from fleetcount_protocol.layout import prints

from fleetcount_transport.toml_values import Range, exact_number, nearest, shown

AGGREGATOR_ID: Final = "1 to 32 of a-z, 0-9 and '-', starting with a letter"
MAX_FILE_BYTES: Final = 1 << 20
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_DURATION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


MAX_KEY_PARTS: Final = 32
"""The time that the standard reader takes for a dotted key grows with the square of its parts."""
_PART: Final = r"""(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"(?:[^"\\]|\\.)*+"|'[^']*+')"""
_KEY_OR_COMMENT: Final = re.compile(rf"#.*+|(?P<key>{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+)", re.ASCII)


class ConfigError(UsageError):
    """A configuration that cannot be used; the message is one line."""


class Variable(str):
    """The text of an environment variable that replaces a value; it is parsed by the type of its key."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, text: str) -> "Variable":
        """Return the text, with the variable's name for messages."""
        made = super().__new__(cls, text)
        made.name = name
        return made


class Source:
    """The file of a table: its name for messages, and the directory of its relative file names."""

    __slots__ = ("_error", "_text", "directory", "name")
    NUMBER: ClassVar = '"0.45" or "9/20", as text'
    """The spelling of an exact number: TOML's own decimals are binary floats, unless `parse_float` keeps them exact."""

    def __init__(
        self, name: str, text: str = "", directory: Path | None = None, error: type[UsageError] = ConfigError
    ) -> None:
        self.name = name
        self.directory = Path() if directory is None else directory
        self._text = text
        self._error = error

    def refuse(self, path: str, problem: str) -> UsageError:
        """Return the error "FILE line N: PATH PROBLEM"; without a file "PATH PROBLEM"."""
        return self._error(f"{self.place_of(path)}{path} {problem}".strip())

    def refuse_variable(self, name: str, problem: str) -> UsageError:
        """Return the error "NAME PROBLEM" of an environment variable."""
        return self._error(f"{name} {problem}")

    def place_of(self, path: str) -> str:
        """Return "FILE line N: " of a dotted key, "FILE: " where the line is not known, "" without a file."""
        line = self.line_of(path)
        return "" if not self.name else f"{self.name}: " if line is None else f"{self.name} line {line}: "

    def line_of(self, path: str) -> int | None:
        """Return the line of a dotted key (from 1), None where it is not found."""
        from fleetcount_transport.toml_lines import line_of_key  # Loaded for a wrong file alone.

        return line_of_key(self._text, path)


def read_toml(path: Path, known: Collection[str] | None = None) -> "Table":
    """Return the root table of a file of at most 1 MiB, whose keys are among `known` (None: any).

    Raises:
        ConfigError: it cannot be read, is not UTF-8 or not TOML, or has an unknown key.
    """
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is {'a directory, ' if path.is_dir() else ''}not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes, which is no configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})") from None
    source = Source(str(path), text, path.parent)
    return Table(source, "", parse_toml(text, str(path)), known)


def parse_toml(
    text: str, name: str, error: type[UsageError] = ConfigError, parse_float: Callable[[str], Any] = float
) -> dict[str, Any]:
    """Return the content of a TOML text; `name` is the file's in messages.

    Raises:
        error: it is not TOML, with the line; or a number in it is longer than Python reads.
    """
    if any(_longest_key(line) > MAX_KEY_PARTS for line in text.split("\n") if line.count(".") >= MAX_KEY_PARTS):
        raise error(f"{name} holds a key of more than {MAX_KEY_PARTS} parts")
    import tomllib  # A device without a configuration file does not need it.

    try:
        return tomllib.loads(text, parse_float=parse_float)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise error(f"{name} is not TOML: {str(problem) or 'nested too deeply'}") from None
    except ValueError:
        raise error(f"{name} holds a number that is too long") from None


def _longest_key(line: str) -> int:
    """Return of how many parts the longest dotted key of a line is; a text in quotes is one part, whatever it holds."""
    keys = (found["key"] or "" for found in _KEY_OR_COMMENT.finditer(line))
    return max((len(re.findall(_PART, key)) for key in keys), default=0)


class Table:
    """One table under a dotted name; each method reads one key, with its default when it may be absent."""

    __slots__ = ("_content", "_path", "source")

    def __init__(self, source: Source, path: str, content: object, known: Collection[str] | None) -> None:
        """Refuse a value that is no table, and every key that is not among `known` (None: any).

        Raises:
            UsageError: of the class that `source` names; for an unknown key with the nearest known one.
        """
        self.source = source
        self._path = path
        if not isinstance(content, dict):
            raise source.refuse(path, f"is {shown(content)}; allowed is a table")
        self._content = cast("Mapping[str, Any]", content)
        for key, value in self._content.items():
            if known is not None and key not in known:
                raise self._about(key, value, f"is unknown; {nearest(key, known)}")

    def path_of(self, key: str) -> str:
        """Return the dotted name of a key of this table, in quotes where it has points of its own."""
        name = f'"{key}"' if "." in key else key
        return f"{self._path}.{name}" if self._path else name

    def has(self, key: str) -> bool:
        """Return whether the key is given."""
        return key in self._content

    def raw(self, key: str) -> object:
        """Return the value without any check, None when absent."""
        return self._content.get(key)

    @property
    def content(self) -> Mapping[str, Any]:
        """The whole table without any check."""
        return self._content

    def refuse(self, key: str, allowed: str) -> UsageError:
        """Return the error that names the key, its value and what is allowed."""
        problem = f"is {shown(self._content[key])}" if key in self._content else "is missing"
        return self.wrong(key, f"{problem}; allowed is {allowed}")

    def wrong(self, key: str, problem: str) -> UsageError:
        """Return the error that names the key and the problem."""
        return self._about(key, self._content.get(key), problem)

    def _about(self, key: str, value: object, problem: str) -> UsageError:
        if isinstance(value, Variable):
            return self.source.refuse_variable(value.name, problem)
        return self.source.refuse(self.path_of(key), problem)

    # Tables in it.

    def only(self, known: Collection[str]) -> "Table":
        """Return the same table; every key that is not among `known` is refused."""
        return Table(self.source, self._path, self._content, known)

    def section(self, key: str, known: Collection[str] | None) -> "Table":
        """Return the sub-table of that name; an absent one is empty."""
        return Table(self.source, self.path_of(key), self._content.get(key, {}), known)

    def sections(
        self, key: str, known: Collection[str] | None, *, most: int, least: int = 0, what: str = "tables"
    ) -> list["Table"]:
        """Return the elements of an array of `least` to `most` tables, none when absent."""
        rows = self._content.get(key, [])
        if not isinstance(rows, list) or not least <= len(cast("list[object]", rows)) <= most:
            count = f"{least} to {most}" if least else f"at most {most}"
            raise self.refuse(key, f"{count} {what}, [[{self.path_of(key)}]] each")
        listed = cast("list[object]", rows)
        return [Table(self.source, f"{self.path_of(key)}[{place}]", row, known) for place, row in enumerate(listed)]

    # Texts.

    def text(self, key: str, pattern: str, allowed: str, default: str | None = None) -> str:
        """Return a text that matches the whole pattern."""
        value = self._content.get(key, default)
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise self.refuse(key, allowed)
        return str(value)

    def printable(self, key: str, longest: int, default: str | None = None) -> str:
        """Return a text of 1 to `longest` printable characters."""
        value = self._content.get(key, default)
        if not isinstance(value, str) or not 1 <= len(value) <= longest or not prints(value):
            raise self.refuse(key, f"a text of 1 to {longest} printable characters")
        return str(value)

    def slug(self, key: str, default: str | None = None) -> str:
        """Return a short name: 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.', the first a letter or digit."""
        allowed = "1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.', the first a letter or a digit"
        return self.text(key, r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", allowed, default)

    def deployment(self, key: str) -> str:
        """Return the name of a deployment."""
        return self.text(key, r"[a-z0-9][a-z0-9-]{0,31}", "1 to 32 of a-z, 0-9 and '-'")

    def aggregator_id(self, key: str) -> AggregatorId:
        """Return an aggregator's id."""
        try:
            return AggregatorId(self.text(key, r"[^\0]*", AGGREGATOR_ID))
        except DecodeError:
            raise self.refuse(key, AGGREGATOR_ID) from None

    def choice(self, key: str, options: Collection[str], default: str | None = None) -> str:
        """Return one of a few texts."""
        value = self._content.get(key, default)
        if isinstance(value, str) and value in options:
            return str(value)
        raise self.refuse(key, " or ".join(map(repr, options)) + did_you_mean(value, options))

    def base64_bytes(self, key: str, size: int | None = None) -> bytes:
        """Return the bytes given in standard base64: exactly `size`, or any number."""
        import base64  # Read once at start-up.
        import binascii

        value = self._content.get(key)
        try:
            decoded = base64.b64decode(value, validate=True) if isinstance(value, str) else None
        except (binascii.Error, ValueError):
            decoded = None
        if decoded is None or len(decoded) != (size or len(decoded)):
            raise self.refuse(key, "base64" if size is None else f"the base64 of {size} bytes")
        return decoded

    # Numbers.

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        """Return true or false; no other spelling."""
        value = self._content.get(key, default)
        if isinstance(value, Variable):
            value = {"true": True, "false": False}.get(value)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number in low..high."""
        value = self._content.get(key, default)
        if isinstance(value, Variable) and _WHOLE.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, allowed: Range, default: Fraction | None = None) -> Fraction:
        """Return an exact number, given as a whole number or as text (`Source.NUMBER`)."""
        value = exact_number(self._content.get(key, default))
        if value is None or value not in allowed:
            raise self.refuse(key, f"a number like {self.source.NUMBER}, {allowed}")
        return value

    def optional(self, key: str, allowed: Range) -> Fraction | None:
        """Return an exact number, or None when the key is absent."""
        return self.number(key, allowed) if key in self._content else None

    def seconds(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Return a duration in seconds in low..high."""
        value = self._content.get(key, default)
        if isinstance(value, Variable) and _DURATION.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(key, f"a number of seconds from {low:g} to {high:g}")
        return float(value)

    # Endpoints and files.

    def endpoint(self, key: str) -> str:
        """Return "host:port" of a server to call."""
        return self._host_and_port(key, split_endpoint, ENDPOINT)

    def listener(self, key: str) -> str:
        """Return "host:port" to listen on; port 0 means any free port."""
        return self._host_and_port(key, split_listener, LISTENER)

    def _host_and_port(self, key: str, split: Callable[[str], object], allowed: str) -> str:
        value = self._content.get(key)
        if not isinstance(value, str):
            raise self.refuse(key, allowed)
        try:
            split(value)
        except UsageError:
            raise self.refuse(key, allowed) from None
        return str(value)

    def file_name(self, key: str) -> Path:
        """Return an absolute path, relative ones of the file under its own directory; it need not exist.

        A relative path in an environment variable counts from the working directory.
        """
        value = self._content.get(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.refuse(key, "a file name")
        return (Path(value) if isinstance(value, Variable) else self.source.directory / value).absolute()

    def file_names(self, key: str) -> tuple[Path, ...]:
        """Return absolute paths as `file_name` does, of a list of them; () without the key."""
        found = self._content.get(key, [])
        names = cast("list[object]", found) if isinstance(found, list) else [None]
        if not all(isinstance(one, str) and one and "\0" not in one for one in names):
            raise self.refuse(key, "a list of file names")
        return tuple((self.source.directory / str(one)).absolute() for one in names)

    def existing_file(self, key: str) -> Path:
        """Return the path of a regular file that exists."""
        path = self.file_name(key)
        if not path.is_file():
            raise self.refuse(key, f"a file that exists ({path} does not, or is no regular file)")
        return path

    def private_file(self, key: str) -> Path:
        """Return the path of a regular file that only its owner may read or write."""
        path = self.existing_file(key)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise self.refuse(key, f"a file of mode 0600 or 0400 ({path} has 0{mode:o}; run chmod 600)")
        return path

    def naming(self, action: Callable[[], Any], key: str, *errors: type[Exception]) -> Any:
        """Return the result of `action`; one of `errors` becomes a refusal of this key."""
        try:
            return action()
        except errors as error:
            raise self.wrong(key, f"cannot be used: {error}") from error
