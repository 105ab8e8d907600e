"""The configuration of one aggregator: a TOML file, overridden by FLEETCOUNT_* variables, checked before all else.

Every refusal is one line that names the key, its value and what is allowed. Secrets are files, never variables; their
contents are read elsewhere (keys).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final

from fleetcount_mechanisms.accounting.budget import LARGEST_BUDGET
from fleetcount_protocol.endpoint import split_listener
from fleetcount_protocol.ids import AggregatorId
from fleetcount_transport.server_config import (
    LogTable,
    MetricsTable,
    TlsTable,
    check_distinct,
    is_local,
    read_operator,
)
from fleetcount_transport.settings import (
    InconsistentError,
    blamed_on,
    overridden,
    read_rows,
    read_settings,
    setting,
    settings,
)
from fleetcount_transport.toml_table import ConfigError, Table, read_toml
from fleetcount_transport.toml_values import Range

__all__ = ["AggregatorConfig", "ConfigError", "GrpcTable", "MqttTable", "PeerTable", "load_config"]

_FROM_THE_FILE_ALONE: Final = ("keys", "tls", "peers")
"""Tables that name secrets or say whom to trust: no variable can swap them."""
_OVERRIDABLE: Final = ("aggregator", "grpc", "mqtt", "limits", "metrics", "log", "workers")
_LARGEST_EPSILON: Final = Range("(0, 1000]")
_TOTAL_EPSILON: Final = Range(f"(0, {LARGEST_BUDGET}]")
_TOTAL_DELTA: Final = Range("(0, 1/1000]")
_POSTERIOR: Final = Range("(0, 1)")
_TEN_YEARS_S: Final = 315_360_000
_MOST_PEERS: Final = 64


@settings
class AggregatorTable:
    """[aggregator]: who this is and where its state lies."""

    id: AggregatorId = setting(Table.aggregator_id)
    operator: str = setting(read_operator)
    deployment: str = setting(Table.deployment)
    state_directory: Path = setting(Table.file_name)
    task_directory: Path = setting(Table.file_name)


@settings
class KeysTable:
    """[keys]: the files of the private keys."""

    signing_key_file: Path = setting(Table.file_name)
    hpke_key_directory: Path = setting(Table.file_name)


@settings
class GrpcTable:
    """[grpc]: where to listen. `insecure` leaves TLS off, on loopback addresses only, for tests.

    One certificate has at most `calls_each` calls and `bytes_each` of uploads under way; `idle_s` is how long a call
    waits for its caller.
    """

    device_listen: str = setting(Table.listener, default="127.0.0.1:7411")
    peer_listen: str = setting(Table.listener, default="127.0.0.1:7421")
    insecure: bool = setting(Table.boolean, default=False)
    concurrent_calls: int = setting(Table.integer, 1, 100_000, default=4096)
    calls_each: int = setting(Table.integer, 1, 100_000, default=256)
    bytes_each: int = setting(Table.integer, 1 << 20, 1 << 36, default=16 << 20)
    idle_s: float = setting(Table.seconds, 1, 3600, default=60.0)

    def __post_init__(self) -> None:
        if self.device_listen == self.peer_listen and split_listener(self.peer_listen)[1] != 0:
            raise InconsistentError(f"grpc.peer_listen is {self.peer_listen!r}, the same as grpc.device_listen")
        for key, address in (("device_listen", self.device_listen), ("peer_listen", self.peer_listen)):
            if self.insecure and not is_local(address):
                raise InconsistentError(f"grpc.{key} is {address!r}; without TLS only loopback addresses are allowed")


@settings
class MqttTable:
    """[mqtt]: the broker; plaintext only on loopback addresses unless `insecure`.

    `inflight` is the broker's own limit of messages under way to one client, 20 for a default mosquitto: so many are
    taken in one group, and so many answers are under way.
    """

    broker: str = setting(Table.endpoint)
    inflight: int = setting(Table.integer, 1, 65_535, default=20)
    ca_file: Path | None = setting(Table.file_name, default=None)
    certificate_file: Path | None = setting(Table.file_name, default=None)
    key_file: Path | None = setting(Table.file_name, default=None)
    insecure: bool = setting(Table.boolean, default=False)

    def __post_init__(self) -> None:
        if self.ca_file is None and not self.insecure and not is_local(self.broker):
            raise InconsistentError(f"mqtt.broker is {self.broker!r}; beyond loopback it needs ca_file (TLS)")


@settings
class PeerTable:
    """[[peers]]: another aggregator; its Ed25519 public key has 32 bytes."""

    id: AggregatorId = setting(Table.aggregator_id)
    operator: str = setting(read_operator)
    endpoint: str = setting(Table.endpoint)
    signing_public_key: bytes = setting(Table.base64_bytes, 32)


def _budget_epsilon(table: Table, key: str, allowed: Range) -> Decimal:
    """Return an exact number as a decimal; one without an end is rounded down, against the budget."""
    number = table.number(key, allowed)
    return Context(prec=28, rounding=ROUND_FLOOR).divide(Decimal(number.numerator), Decimal(number.denominator))


@settings
class LimitsTable:
    """[limits]: what the operator allows. Without `total_epsilon` it is ten times `largest_epsilon`."""

    largest_epsilon: Decimal = setting(_budget_epsilon, _LARGEST_EPSILON)
    total_epsilon: Decimal | None = setting(_budget_epsilon, _TOTAL_EPSILON, default=None)
    total_delta: Fraction = setting(Table.number, _TOTAL_DELTA, default=Fraction(1, 10**9))
    budget_period_s: int = setting(Table.integer, 3600, _TEN_YEARS_S, default=30 * 86_400)
    smallest_min_batch_size: int = setting(Table.integer, 2, 10**9, default=10)
    allow_exact_release: bool = setting(Table.boolean, default=False)
    allow_one_sided: bool = setting(Table.boolean, default=False)
    largest_posterior: Fraction | None = setting(Table.number, _POSTERIOR, default=None)
    sessions_per_device: int = setting(Table.integer, 1, 10_000, default=16)
    give_up_s: float = setting(Table.seconds, 1, 30 * 86_400, default=900.0)
    call_timeout_s: float = setting(Table.seconds, 0.1, 3600, default=30.0)

    def __post_init__(self) -> None:
        if self.total_epsilon is not None and self.total_epsilon < self.largest_epsilon:
            raise InconsistentError(
                f"limits.total_epsilon is {self.total_epsilon}; allowed is at least largest_epsilon"
                f" ({self.largest_epsilon})"
            )
        if self.call_timeout_s > self.give_up_s:
            raise InconsistentError(
                f"limits.call_timeout_s is {self.call_timeout_s:g}; allowed is at most give_up_s ({self.give_up_s:g})"
            )


@settings
class WorkersTable:
    """[workers]: processes for the arithmetic."""

    count: int = setting(Table.integer, 1, 256, default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorConfig:
    """The whole configuration; paths are absolute once loaded."""

    aggregator: AggregatorTable
    keys: KeysTable
    tls: TlsTable
    grpc: GrpcTable
    mqtt: MqttTable | None
    peers: tuple[PeerTable, ...]
    limits: LimitsTable
    metrics: MetricsTable | None
    log: LogTable
    workers: WorkersTable

    def __post_init__(self) -> None:
        own, ids = self.aggregator.id, [peer.id for peer in self.peers]
        if own in ids:
            raise InconsistentError(f"peers: {own!r} is this aggregator itself")
        check_distinct("peers: id", ids)
        check_distinct("peers: signing_public_key", [peer.signing_public_key.hex() for peer in self.peers])
        check_distinct("peers: endpoint", [peer.endpoint for peer in self.peers])
        if self.grpc.peer_listen in [peer.endpoint for peer in self.peers]:
            raise InconsistentError(f"peers: endpoint {self.grpc.peer_listen!r} is this aggregator's own")


def load_config(path: Path, environment: Mapping[str, str]) -> AggregatorConfig:
    """Return the checked configuration of a TOML file, relative paths taken from its directory.

    Raises:
        ConfigError: one line with the key, its value and what is allowed.
    """
    root = overridden(
        read_toml(path, (*_OVERRIDABLE, *_FROM_THE_FILE_ALONE)), _OVERRIDABLE, environment, _FROM_THE_FILE_ALONE
    )
    with blamed_on(root.source):
        return AggregatorConfig(
            aggregator=read_settings(root, "aggregator", AggregatorTable),
            keys=read_settings(root, "keys", KeysTable),
            tls=read_settings(root, "tls", TlsTable),
            grpc=read_settings(root, "grpc", GrpcTable),
            mqtt=read_settings(root, "mqtt", MqttTable) if root.has("mqtt") else None,
            peers=read_rows(root, "peers", PeerTable, most=_MOST_PEERS),
            limits=read_settings(root, "limits", LimitsTable),
            metrics=read_settings(root, "metrics", MetricsTable) if root.has("metrics") else None,
            log=read_settings(root, "log", LogTable),
            workers=read_settings(root, "workers", WorkersTable),
        )
