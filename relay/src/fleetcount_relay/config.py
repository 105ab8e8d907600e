"""The configuration of a relay: a TOML file, checked before anything starts.

Every refusal is one line that names the key, its value and what is allowed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_protocol.ids import AggregatorId
from fleetcount_transport.admission.admission import AdmissionTable
from fleetcount_transport.server_config import LogTable, MetricsTable, TlsTable, check_distinct
from fleetcount_transport.settings import InconsistentError, blamed_on, read_rows, read_settings, setting, settings
from fleetcount_transport.toml_table import Table, read_toml

if TYPE_CHECKING:  # As in the tables of every server.
    from fleetcount_transport.denials import DenySource

_TABLES: Final = ("relay", "admission", "tls", "aggregators", "metrics", "log")
_MOST_AGGREGATORS: Final = 64


@settings
class RelayTable:
    """[relay]: the listener for devices, where the newest deny list is kept, and how long instalments wait (s)."""

    listen: str = setting(Table.listener, default="127.0.0.1:7431")
    state_directory: Path | None = setting(Table.file_name, default=None)
    linger_s: float = setting(Table.seconds, 0, 1, default=0.02)
    call_timeout_s: float = setting(Table.seconds, 0.1, 3600, default=30.0)


@settings
class UpstreamTable:
    """[[aggregators]]: an aggregator that devices may reach through this relay."""

    id: AggregatorId = setting(Table.aggregator_id)
    endpoint: str = setting(Table.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """The whole configuration; paths are absolute. `tls` authenticates the relay to devices and aggregators."""

    relay: RelayTable
    admission: AdmissionTable
    tls: TlsTable
    aggregators: tuple[UpstreamTable, ...]
    metrics: MetricsTable | None
    log: LogTable

    def __post_init__(self) -> None:
        check_distinct("aggregators: id", [one.id for one in self.aggregators])
        check_distinct("aggregators: endpoint", [one.endpoint for one in self.aggregators])
        if self.relay.listen in [one.endpoint for one in self.aggregators]:
            raise InconsistentError(f"aggregators: endpoint {self.relay.listen!r} is this relay's own")
        if self.tls.deny_source() is not None and self.relay.state_directory is None:
            raise InconsistentError(
                "relay.state_directory is missing; with a deny list it is needed, so that an older list is refused"
                " after a restart too"
            )

    def deny_source(self) -> "DenySource | None":
        """Return the source of the deny list, with the file that keeps the newest; None without one."""
        directory = self.relay.state_directory
        return self.tls.deny_source(None if directory is None else directory / "deny-list")


def load_relay_config(path: Path) -> RelayConfig:
    """Return the checked configuration of a TOML file, relative paths taken from its directory.

    Raises:
        ConfigError: one line with the key, its value and what is allowed.
    """
    root = read_toml(path, _TABLES)
    with blamed_on(root.source):
        return RelayConfig(
            relay=read_settings(root, "relay", RelayTable),
            admission=read_settings(root, "admission", AdmissionTable),
            tls=read_settings(root, "tls", TlsTable),
            aggregators=read_rows(root, "aggregators", UpstreamTable, most=_MOST_AGGREGATORS),
            metrics=read_settings(root, "metrics", MetricsTable) if root.has("metrics") else None,
            log=read_settings(root, "log", LogTable),
        )
