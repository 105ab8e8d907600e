"""The configuration of a relay: a TOML file, checked before all else, in the style of an aggregator's (config).

Every refusal is one line that names the key, its value and what is allowed.
"""

from pathlib import Path
from typing import Annotated, Final, Self

from fleetcount_aggregator.config import (
    Endpoint,
    FileName,
    Id,
    Listen,
    LogTable,
    MetricsTable,
    PathKeys,
    Table,
    check_distinct,
    check_metrics_listener,
    read_settings,
)
from pydantic import Field, StrictInt, model_validator

__all__ = ["RelayConfig", "load_relay_config"]

_PATH_KEYS: Final[PathKeys] = (("tls", ("certificate_file", "key_file", "aggregator_ca_file", "device_ca_file")),)


class RelayTable(Table):
    """[relay]: where devices come in, how much may wait, and each caller's part of it as an aggregator's `[grpc]`."""

    listen: Listen = "127.0.0.1:7431"
    linger_s: Annotated[float, Field(ge=0, le=1)] = 0.02
    bytes_in_memory: Annotated[StrictInt, Field(ge=1 << 20, le=1 << 36)] = 64 << 20
    concurrent_calls: Annotated[StrictInt, Field(ge=1, le=100_000)] = 4096
    calls_each: Annotated[StrictInt, Field(ge=1, le=100_000)] = 256
    bytes_each: Annotated[StrictInt, Field(ge=1 << 20, le=1 << 36)] = 16 << 20
    idle_s: Annotated[float, Field(ge=1, le=3600)] = 60.0
    call_timeout_s: Annotated[float, Field(ge=0.1, le=3600)] = 30.0


class RelayTlsTable(Table):
    """[tls]: the relay's own certificate, shown to devices and to aggregators, and the two authorities it trusts."""

    certificate_file: FileName
    key_file: FileName
    aggregator_ca_file: FileName
    device_ca_file: FileName


class UpstreamTable(Table):
    """[[aggregators]]: an aggregator that devices may reach through this relay."""

    id: Id
    endpoint: Endpoint


class RelayConfig(Table):
    """The whole configuration; paths are absolute once loaded."""

    relay: RelayTable = RelayTable()
    tls: RelayTlsTable
    aggregators: Annotated[tuple[UpstreamTable, ...], Field(min_length=1, max_length=64)]
    metrics: MetricsTable | None = None
    log: LogTable = LogTable()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_distinct("aggregators: id", [one.id for one in self.aggregators])
        check_distinct("aggregators: endpoint", [one.endpoint for one in self.aggregators])
        if self.relay.listen in [one.endpoint for one in self.aggregators]:
            raise ValueError(f"aggregators: endpoint {self.relay.listen!r} is this relay's own")
        check_metrics_listener(self.metrics)
        return self


def load_relay_config(path: Path) -> RelayConfig:
    """Return the checked configuration of a TOML file, relative paths taken from its directory.

    Raises:
        ConfigError: one line with the key, its value and what is allowed.
    """
    return read_settings(path, RelayConfig, _PATH_KEYS)
