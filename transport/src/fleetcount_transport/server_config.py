"""The configuration tables of every server: TLS files, metrics, log; and checks across tables.

It must not read a key or open a port.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_protocol.ids import is_loopback, split_listener

from fleetcount_transport.logs import LEVELS
from fleetcount_transport.settings import InconsistentError, setting, settings
from fleetcount_transport.toml_table import Table

if TYPE_CHECKING:  # Reading a configuration loads no cryptography.
    from fleetcount_transport.denials import DenySource

_HOST: Final = r"[A-Za-z0-9.-]{1,253}"
_URL: Final = r"https?://[!-~]{1,500}"


@settings
class TlsTable:
    """[tls]: the server's own certificate, the two authorities it trusts, and the devices' authority's deny list."""

    certificate_file: Path = setting(Table.file_name)
    key_file: Path = setting(Table.file_name)
    aggregator_ca_file: Path = setting(Table.file_name)
    device_ca_file: Path = setting(Table.file_name)
    deny_list_file: Path | None = setting(Table.file_name, default=None)
    deny_list_url: str = setting(Table.text, _URL, "an http:// or https:// URL", default="")

    def __post_init__(self) -> None:
        if self.deny_list_file is not None and self.deny_list_url:
            raise InconsistentError("tls.deny_list_file and tls.deny_list_url are both given; allowed: one of them")

    def deny_source(self, kept: Path | None = None) -> "DenySource | None":
        """Return the source of the deny list, None without one; `kept` is the file for a copy of the newest list."""
        from fleetcount_transport.denials import DenySource

        if self.deny_list_file is None and not self.deny_list_url:
            return None
        return DenySource(file=self.deny_list_file, url=self.deny_list_url, kept=kept)


@settings
class MetricsTable:
    """[metrics]: the listener of the operator's pages; on loopback unless `insecure`.

    `host` is the name with dots by which programs ask, if they ask by one.
    """

    listen: str = setting(Table.listener)
    host: str = setting(Table.text, _HOST, "a host name", default="")
    insecure: bool = setting(Table.boolean, default=False)

    def __post_init__(self) -> None:
        if not self.insecure and not is_local(self.listen):
            raise InconsistentError(f"metrics.listen is {self.listen!r}; beyond loopback it needs insecure = true")


@settings
class LogTable:
    """[log]: the least severe level that is logged."""

    level: str = setting(Table.choice, LEVELS, default="info")


def is_local(listener: str) -> bool:
    """Return whether "host:port" is on this machine alone."""
    return is_loopback(split_listener(listener)[0])


def check_distinct(what: str, values: Iterable[str]) -> None:
    """Refuse values that occur twice; `what` names them in the message.

    Raises:
        InconsistentError: one does.
    """
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise InconsistentError(f"{what} {value!r} occurs twice")
        seen.add(value)


def read_operator(table: Table, key: str) -> str:
    """Return the name of an operator, or another name for people: without blanks at its ends."""
    value = table.printable(key, 200)
    if value != value.strip() or len(value.encode()) > 200:
        raise table.refuse(key, "1 to 200 bytes of printable characters without blanks at the ends")
    return value
