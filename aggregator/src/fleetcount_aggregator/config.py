"""The configuration of one aggregator: a TOML file, overridden by FLEETCOUNT_* variables, checked before anything
starts.

Every refusal is one line that names the key, its value and what is allowed. Secrets are files, never variables; other
modules read their contents (`host.keys`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET
from fleetcount_protocol.ids import AggregatorId, is_loopback, split_listener
from fleetcount_protocol.wire.topics import BUCKETS
from fleetcount_transport.admission.admission import AdmissionTable
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
    insecure,
    overridden,
    read_rows,
    read_settings,
    setting,
    settings,
)
from fleetcount_transport.toml_table import ConfigError, Table, read_toml
from fleetcount_transport.toml_values import Range

from fleetcount_aggregator.host.key_rotation import Rotation
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.host.token_keys import PKCS11_SCHEME, load_wrapping_key

_FROM_THE_FILE_ALONE: Final = ("keys", "tls", "peers", "store")
"""Tables that name secrets or trusted parties: no environment variable may replace their values."""
_OVERRIDABLE: Final = ("aggregator", "grpc", "admission", "mqtt", "limits", "metrics", "log", "workers")
_LARGEST_EPSILON: Final = Range("(0, 1000]")
_TOTAL_EPSILON: Final = Range(f"(0, {LARGEST_BUDGET}]")
_TOTAL_DELTA: Final = Range("(0, 1/1000]")
_POSTERIOR: Final = Range("(0, 1)")
_TEN_YEARS_S: Final = 315_360_000
_MOST_PEERS: Final = 64


@settings
class AggregatorTable:
    """[aggregator]: the aggregator's identity, and the directories of its state and questions."""

    id: AggregatorId = setting(Table.aggregator_id)
    operator: str = setting(read_operator)
    deployment: str = setting(Table.deployment)
    state_directory: Path = setting(Table.file_name)
    question_directory: Path = setting(Table.file_name)

    def check_question_directory(self) -> None:
        """Refuse a question directory that is not there: no question would ever be read from it.

        Raises:
            ConfigError: it is no directory.
        """
        if not self.question_directory.is_dir():
            raise ConfigError(f"aggregator.question_directory {self.question_directory} is not a directory")


def _key_place(table: Table, key: str) -> Path | str:
    """Return a file name, or a `pkcs11:` URI as it is written."""
    value = table.raw(key)
    return value if isinstance(value, str) and value.startswith(PKCS11_SCHEME) else table.file_name(key)


def _key_directory(table: Table, key: str) -> Path:
    if str(table.raw(key)).startswith(PKCS11_SCHEME):
        raise table.wrong(
            key,
            "is a pkcs11: URI; allowed is a directory: opening HPKE needs the private key here, which"
            " wrapping_key keeps under a key of a token",
        )
    return table.file_name(key)


def _wrapping_key(table: Table, key: str) -> str:
    if not str(table.raw(key)).startswith(PKCS11_SCHEME):
        raise table.refuse(key, "the pkcs11: URI of an AES-256 key in a token")
    return str(table.raw(key))


@settings
class KeysTable:
    """[keys]: the files of the private keys. Without `store_key_file` the store's key follows from the signing key.

    At the first start with `former_store_key_file` everything that is encrypted under that key is encrypted anew.

    The signing key may also be in a token (`host.token_keys`): then the store needs a key of its own. With
    `wrapping_key` the sealing keys' files are encrypted under a key that never leaves a token.

    With `rotate_s` the aggregator makes a new sealing key every `rotate_s` seconds and deletes old ones
    (`host.key_rotation`).
    """

    signing_key_file: Path | str = setting(_key_place)
    hpke_key_directory: Path = setting(_key_directory)
    wrapping_key: str | None = setting(_wrapping_key, default=None)
    store_key_file: Path | None = setting(Table.file_name, default=None)
    former_store_key_file: Path | None = setting(Table.file_name, default=None)
    succession_files: tuple[Path, ...] = setting(Table.file_names, default=())
    rotate_s: int | None = setting(Table.integer, 60, _TEN_YEARS_S, default=None)
    overlap_s: int | None = setting(Table.integer, 1, _TEN_YEARS_S, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.signing_key_file, str) and self.store_key_file is None:
            raise InconsistentError("keys.store_key_file is missing; nothing follows from a signing key in a token")
        if self.former_store_key_file is not None and self.store_key_file in (None, self.former_store_key_file):
            raise InconsistentError(
                "keys.store_key_file is missing, or the same as former_store_key_file; allowed is the file of a new key"
            )
        if self.rotate_s is None and self.overlap_s is not None:
            raise InconsistentError(f"keys.overlap_s is {self.overlap_s}; allowed only with rotate_s")
        if (rotation := self.rotation) is not None and 2 * rotation.overlap_s > rotation.every_s:
            raise InconsistentError(
                f"keys.overlap_s is {rotation.overlap_s}; allowed is at most half of rotate_s ({self.rotate_s})"
            )

    @property
    def rotation(self) -> Rotation | None:
        """How sealing keys change, None where they do not; two overlap for two days by default."""
        overlap_s = 2 * 86_400 if self.overlap_s is None else self.overlap_s
        return None if self.rotate_s is None else Rotation(every_s=self.rotate_s, overlap_s=overlap_s)

    def key_ring(self) -> KeyRing:
        """Return the sealing keys.

        Raises:
            UsageError: see `KeyRing.load` and `token_keys.load_wrapping_key`.
        """
        wrapping = None if self.wrapping_key is None else load_wrapping_key(self.wrapping_key)
        return KeyRing.load(self.hpke_key_directory, wrapping)


def _store_url(table: Table, key: str) -> str:
    """Return the URL of a PostgreSQL database; one with a password is refused, and not shown in the message."""
    allowed = "postgresql://[USER@]HOST[:PORT]/DATABASE[?NAME=VALUE]"
    try:
        text = table.printable(key, 2000)
        url = urlsplit(text)
        named = {name for name, _ in parse_qsl(url.query)}
        _ = url.port
    except ValueError:
        raise table.wrong(key, f"is no URL; allowed is {allowed}") from None
    if url.password is not None or named & {"password", "sslpassword"}:
        raise table.wrong(key, "holds a password; allowed is a URL without one, and store.password_file")
    if url.scheme != "postgresql" or not url.path.strip("/"):
        raise table.refuse(key, allowed)
    hosts = [url.hostname or "", *(value for name, value in parse_qsl(url.query) if name in {"host", "hostaddr"})]
    if "sslmode" not in named and any(not _is_here(one) for host in hosts for one in host.split(",")):
        raise table.wrong(
            key,
            "names another machine and no sslmode, with which it may come to plaintext; allowed is"
            " sslmode=verify-full&sslrootcert=FILE, or another mode that is written out",
        )
    return text  # Not url.geturl(), which drops the slashes of a URL without a host.


def _is_here(host: str) -> bool:
    """Return whether a server is on this machine: the default socket, a directory of sockets, or a loopback address."""
    return not host or host.startswith(("/", "@")) or is_loopback(host)


@settings
class StoreTable:
    """[store]: without `url` the store is a SQLite file in the state directory; with it, a PostgreSQL database.

    With it several processes may be one aggregator.
    """

    url: str | None = setting(_store_url, default=None)
    password_file: Path | None = setting(Table.file_name, default=None)

    def __post_init__(self) -> None:
        if self.password_file is not None and self.url is None:
            raise InconsistentError("store.url is missing; store.password_file is the password of its server")


@settings
class GrpcTable:
    """[grpc]: the listeners. `insecure` turns TLS off, on loopback addresses only, for tests."""

    device_listen: str = setting(Table.listener, default="127.0.0.1:7411")
    peer_listen: str = setting(Table.listener, default="127.0.0.1:7421")
    insecure: bool = setting(Table.boolean, default=False)

    def __post_init__(self) -> None:
        if self.device_listen == self.peer_listen and split_listener(self.peer_listen)[1] != 0:
            raise InconsistentError(f"grpc.peer_listen is {self.peer_listen!r}, the same as grpc.device_listen")
        for key, address in (("device_listen", self.device_listen), ("peer_listen", self.peer_listen)):
            if self.insecure and not is_local(address):
                raise InconsistentError(f"grpc.{key} is {address!r}; without TLS only loopback addresses are allowed")


@settings
class MqttTable:
    """[mqtt]: the broker; plaintext only on loopback addresses unless `insecure`.

    `inflight` bounds the messages in one group; the answers of a few groups wait for their acknowledgement. A default
    mosquitto delivers 20 at once. `slots` connections share the devices; each process of an aggregator over PostgreSQL
    has some of them.
    """

    broker: str = setting(Table.endpoint)
    slots: int = setting(Table.integer, 1, BUCKETS, default=1)
    inflight: int = setting(Table.integer, 1, 65_535, default=20)
    ca_file: Path | None = setting(Table.file_name, default=None)
    certificate_file: Path | None = setting(Table.file_name, default=None)
    key_file: Path | None = setting(Table.file_name, default=None)
    insecure: bool = setting(insecure, default=False)

    def __post_init__(self) -> None:
        if self.ca_file is None and not self.insecure and not is_local(self.broker):
            raise InconsistentError(f"mqtt.broker is {self.broker!r}; beyond loopback it needs ca_file (TLS)")
        identity = {"certificate_file": self.certificate_file, "key_file": self.key_file}
        if any(identity.values()) and not all((self.ca_file, *identity.values())):
            given = next(key for key, file in identity.items() if file)
            raise InconsistentError(f"mqtt.{given} is given; allowed is ca_file with certificate_file and key_file")

    def credential(self, slot: int) -> tuple[Path | None, Path | None]:
        """Return the files of the certificate and the key of a slot, (None, None) without a certificate.

        A broker allows one connection per certificate. The configuration names the files of slot 0; those of the others
        lie beside them, with -slot1, -slot2, ... before the suffix.
        """
        return _of_slot(self.certificate_file, slot), _of_slot(self.key_file, slot)


def _of_slot(path: Path | None, slot: int) -> Path | None:
    return path if path is None or slot == 0 else path.with_name(f"{path.stem}-slot{slot}{path.suffix}")


@settings
class PeerTable:
    """[[peers]]: another aggregator, with its Ed25519 public key (32 bytes) and the files of its successions.

    `ca_file` has the authority of its operator, which then certifies this peer, and no other; without it,
    `aggregator_ca_file` of [tls] does.
    """

    id: AggregatorId = setting(Table.aggregator_id)
    operator: str = setting(read_operator)
    endpoint: str = setting(Table.endpoint)
    signing_public_key: bytes = setting(Table.base64_bytes, 32)
    ca_file: Path | None = setting(Table.file_name, default=None)
    succession_files: tuple[Path, ...] = setting(Table.file_names, default=())


def _budget_epsilon(table: Table, key: str, allowed: Range) -> Decimal:
    """Return an exact number as a decimal, rounded down to 28 digits: a budget must not grow by rounding."""
    number = table.number(key, allowed)
    return Context(prec=28, rounding=ROUND_FLOOR).divide(Decimal(number.numerator), Decimal(number.denominator))


@settings
class LimitsTable:
    """[limits]: the operator's limits (`host.Limits`). `total_epsilon` is by default ten times `largest_epsilon`.

    Without `keep_records_s` records and debits are kept for ever (`windows.retention`).
    """

    largest_epsilon: Decimal = setting(_budget_epsilon, _LARGEST_EPSILON)
    total_epsilon: Decimal | None = setting(_budget_epsilon, _TOTAL_EPSILON, default=None)
    total_delta: Fraction = setting(Table.number, _TOTAL_DELTA, default=Fraction(1, 10**9))
    budget_period_s: int = setting(Table.integer, 3600, _TEN_YEARS_S, default=30 * 86_400)
    smallest_min_batch_size: int = setting(Table.integer, 2, 10**9, default=10)
    allow_exact_release: bool = setting(Table.boolean, default=False)
    allow_one_sided: bool = setting(Table.boolean, default=False)
    largest_posterior: Fraction | None = setting(Table.number, _POSTERIOR, default=None)
    sessions_per_device: int = setting(Table.integer, 1, 10_000, default=16)
    keep_digests_s: int = setting(Table.integer, 0, _TEN_YEARS_S, default=86_400)
    keep_records_s: int | None = setting(Table.integer, 3600, 10 * _TEN_YEARS_S, default=None)
    give_up_s: float = setting(Table.seconds, 1, 30 * 86_400, default=900.0)
    leeway_s: float = setting(Table.seconds, 0, 60, default=5.0)
    largest_skew_s: float = setting(Table.seconds, 1, 3600, default=30.0)
    call_timeout_s: float = setting(Table.seconds, 0.1, 3600, default=30.0)

    def __post_init__(self) -> None:
        if self.total_epsilon is not None and self.total_epsilon < self.largest_epsilon:
            raise InconsistentError(
                f"limits.total_epsilon is {self.total_epsilon}; allowed is at least largest_epsilon"
                f" ({self.largest_epsilon})"
            )
        if self.keep_records_s is not None and self.keep_records_s < self.budget_period_s:
            raise InconsistentError(
                f"limits.keep_records_s is {self.keep_records_s}; allowed is at least budget_period_s"
                f" ({self.budget_period_s}): what a period adds up has to be there"
            )
        if self.call_timeout_s > self.give_up_s:
            raise InconsistentError(
                f"limits.call_timeout_s is {self.call_timeout_s:g}; allowed is at most give_up_s ({self.give_up_s:g})"
            )


@settings
class WorkersTable:
    """[workers]: the number of processes for verification."""

    count: int = setting(Table.integer, 1, 256, default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorConfig:
    """The whole configuration; paths are absolute once loaded."""

    aggregator: AggregatorTable
    keys: KeysTable
    tls: TlsTable
    grpc: GrpcTable
    admission: AdmissionTable
    mqtt: MqttTable | None
    peers: tuple[PeerTable, ...]
    limits: LimitsTable
    metrics: MetricsTable | None
    log: LogTable
    workers: WorkersTable
    store: StoreTable

    @property
    def aggregator_authorities(self) -> dict[AggregatorId, Path]:
        """The file of the authorities that certify each aggregator, itself included, by its id."""
        common = self.tls.aggregator_ca_file
        return {self.aggregator.id: common, **{peer.id: peer.ca_file or common for peer in self.peers}}

    @property
    def store_place(self) -> StorePlace:
        """The place of this aggregator's store."""
        directory = self.aggregator.state_directory
        return StorePlace(directory=directory, url=self.store.url, password_file=self.store.password_file)

    def __post_init__(self) -> None:
        if self.store.url is not None and self.keys.store_key_file is None:
            raise InconsistentError(
                "keys.store_key_file is missing; a store in PostgreSQL needs a key of its own, since what is deleted"
                " there lives on in archives and backups until that key is replaced"
            )
        if self.mqtt is not None and self.mqtt.slots > 1 and self.store.url is None:
            raise InconsistentError(
                f"mqtt.slots is {self.mqtt.slots} and store.url is missing; a store in a file is of one process, which"
                " has one connection to the broker: allowed is 1"
            )
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
            admission=read_settings(root, "admission", AdmissionTable),
            mqtt=read_settings(root, "mqtt", MqttTable) if root.has("mqtt") else None,
            peers=read_rows(root, "peers", PeerTable, least=0, most=_MOST_PEERS),
            limits=read_settings(root, "limits", LimitsTable),
            metrics=read_settings(root, "metrics", MetricsTable) if root.has("metrics") else None,
            log=read_settings(root, "log", LogTable),
            workers=read_settings(root, "workers", WorkersTable),
            store=read_settings(root, "store", StoreTable),
        )
