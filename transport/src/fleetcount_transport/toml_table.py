"""One table of a TOML file, read key by key with type, range and spelling checked.

Every refusal is one line that names the file, the key, the value and what is allowed; it never reads
a secret's content.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.endpoint import ENDPOINT, LISTENER, split_endpoint, split_listener
from fleetcount_protocol.errors import UsageError

__all__ = ["ConfigError", "Table"]

_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?|[0-9]{1,18}/[1-9][0-9]{0,17}", re.ASCII)
_SHOWN: Final = 60


class ConfigError(UsageError):
    """A configuration that cannot be used; the message is one line."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class Table:
    """One table under a name; each method takes a key out, with its default when it may be absent."""

    __slots__ = ("_content", "_directory", "_file", "_name")

    def __init__(self, file: Path, name: str, content: object, known: Sequence[str]) -> None:
        """Refuse what is no table and every key that is not among `known`, with the nearest known name."""
        self._file = file
        self._name = name
        self._directory = file.parent
        if not isinstance(content, dict):
            raise ConfigError(f"{file}: {name or 'the file'} is {_shown(content)}, not a table")
        self._content = cast("Mapping[str, object]", content)
        for key in self._content:
            if key not in known:
                raise self._unknown(key, known)

    def _unknown(self, key: str, known: Sequence[str]) -> ConfigError:
        from difflib import get_close_matches  # Only a wrong file pays for this import.

        near = get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known) or 'none'}"
        return ConfigError(f"{self._file}: unknown key {self._path(key)}; {hint}")

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def refuse(self, key: str, allowed: str) -> ConfigError:
        """Return the error that names the key, its value and what is allowed."""
        value = _shown(self._content[key]) if key in self._content else "missing"
        return ConfigError(f"{self._file}: {self._path(key)} is {value}; allowed is {allowed}")

    def section(self, key: str, known: Sequence[str]) -> "Table":
        """Return the sub-table of that name; an absent one is empty."""
        name = self._path(key)
        return Table(self._file, name, self._content.get(key, {}), known)

    def has(self, key: str) -> bool:
        """Return whether the key is given."""
        return key in self._content

    def keys(self) -> tuple[str, ...]:
        """Return the given keys in the file's order."""
        return tuple(self._content)

    def raw(self, key: str) -> object:
        """Return the value as it stands, None when absent."""
        return self._content.get(key)

    def text(self, key: str, pattern: str, allowed: str, default: str | None = None) -> str:
        """Return a text that matches the whole pattern."""
        value = self._content.get(key, default)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self.refuse(key, allowed)
        return value

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """Return one of a few texts."""
        hint = did_you_mean(self._content.get(key), options)
        return self.text(key, "|".join(map(re.escape, options)), " or ".join(map(repr, options)) + hint, default)

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return true or false; no other spelling."""
        value = self._content.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number in low..high."""
        value = self._content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def fraction(self, key: str, high: int, default: Fraction | None = None) -> Fraction:
        """Return an exact number in (0, high], given as a whole number or as text: "0.45" or "9/20"."""
        value = self._content.get(key, default)
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = Fraction(value)
        if isinstance(value, bool) or not isinstance(value, int | Fraction) or not 0 < value <= high:
            raise self.refuse(key, f'more than 0 and at most {high}, as text: "0.45" or "9/20"')
        return Fraction(value)

    def seconds(self, key: str, low: float, high: float, default: float) -> float:
        """Return a duration in seconds in low..high."""
        value = self._content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(key, f"a number of seconds from {low:g} to {high:g}")
        return float(value)

    def base64_bytes(self, key: str, size: int) -> bytes:
        """Return exactly `size` bytes given in standard base64."""
        import base64  # Read once at start-up.
        import binascii

        value = self._content.get(key)
        try:
            decoded = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
        except (binascii.Error, ValueError):
            decoded = b""
        if len(decoded) != size:
            raise self.refuse(key, f"the base64 of {size} bytes")
        return decoded

    def endpoint(self, key: str, default: str | None = None) -> str:
        """Return "host:port" of something that can be called."""
        return self._host_and_port(key, default, split_endpoint, ENDPOINT)

    def listener(self, key: str, default: str | None = None) -> str:
        """Return "host:port" of something to listen on; port 0 stands for any that is free."""
        return self._host_and_port(key, default, split_listener, LISTENER)

    def _host_and_port(self, key: str, default: str | None, split: Callable[[str], object], allowed: str) -> str:
        value = self._content.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, allowed)
        try:
            split(value)
        except UsageError:
            raise self.refuse(key, allowed) from None
        return value

    def path(self, key: str) -> Path:
        """Return a path, relative ones under the file's own directory; it need not exist."""
        value = self._content.get(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.refuse(key, "a file name")
        return self._directory / value

    def existing_file(self, key: str) -> Path:
        """Return the path of a regular file that exists."""
        path = self.path(key)
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
