"""The configuration of one aggregator: a TOML file, overridden by FLEETCOUNT_* variables, checked before all else.

Every refusal is one line that names the key, its value and what is allowed. Secrets are files, never variables; their
contents are read elsewhere (keys).
"""

import base64
import binascii
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from fleetcount_protocol.endpoint import ENDPOINT, LISTENER, is_loopback, split_endpoint, split_listener
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from fleetcount_aggregator.environment import PREFIX, ConfigError, Environment, model_in, shown

__all__ = [
    "AggregatorConfig",
    "ConfigError",
    "Endpoint",
    "FileName",
    "Id",
    "Listen",
    "LogTable",
    "MetricsTable",
    "PathKeys",
    "Table",
    "check_distinct",
    "check_metrics_listener",
    "load_config",
    "read_settings",
]

_MAX_FILE_BYTES: Final = 256 * 1024
_DEPLOYMENT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,12})?", re.ASCII)
_NO_OVERRIDE: Final = ("keys", "tls", "peers")
"""Tables that name secrets or say whom to trust: only the file decides, so that no variable can swap them."""


PathKeys = tuple[tuple[str, tuple[str, ...]], ...]
SettingsT = TypeVar("SettingsT", bound=BaseModel)


def _is_local(endpoint: str) -> bool:
    return is_loopback(split_listener(endpoint)[0])


def _listen(value: str) -> str:
    try:
        split_listener(value)
    except UsageError:
        raise ValueError(f"must be {LISTENER}") from None
    return value


def _endpoint(value: str) -> str:
    try:
        split_endpoint(value)
    except UsageError:
        raise ValueError(f"must be {ENDPOINT}") from None
    return value


def _aggregator_id(value: str) -> str:
    try:
        return AggregatorId(value)
    except FleetcountError as error:
        raise ValueError(str(error)) from None


def _named(value: str) -> str:
    if not value.isprintable() or value != value.strip() or not 1 <= len(value.encode()) <= 200:
        raise ValueError("must be 1 to 200 printable characters without blanks at the ends")
    return value


def _deployment(value: str) -> str:
    if not _DEPLOYMENT.fullmatch(value):
        raise ValueError("must be 1 to 32 of a-z, 0-9 and '-'")
    return value


def _public_key(value: str) -> str:
    try:
        key = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ValueError("must be base64 of 32 bytes")
    return value


def _epsilon(value: object) -> object:
    """Take a positive decimal as text (or a whole number); floats would not be what was written."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        raise ValueError('must be a positive decimal in quotes, such as "4" or "0.5"')
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError("must be a positive decimal in quotes") from None
    if not 0 < number <= 1000:
        raise ValueError("must be above 0 and at most 1000")
    return number


Named = Annotated[StrictStr, AfterValidator(_named)]
Id = Annotated[StrictStr, AfterValidator(_aggregator_id)]
Listen = Annotated[StrictStr, AfterValidator(_listen)]
Endpoint = Annotated[StrictStr, AfterValidator(_endpoint)]
PublicKey = Annotated[StrictStr, AfterValidator(_public_key)]
Epsilon = Annotated[Decimal, BeforeValidator(_epsilon)]
FileName = Annotated[Path, Field(strict=False)]


class Table(BaseModel):
    """A table of a configuration file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AggregatorTable(Table):
    """[aggregator]: who this is and where its state lies."""

    id: Id
    operator: Named
    deployment: Annotated[StrictStr, AfterValidator(_deployment)]
    state_directory: FileName
    task_directory: FileName


class KeysTable(Table):
    """[keys]: the files of the private keys."""

    signing_key_file: FileName
    hpke_key_directory: FileName


class TlsTable(Table):
    """[tls]: this aggregator's certificate and the two authorities it trusts."""

    certificate_file: FileName
    key_file: FileName
    aggregator_ca_file: FileName
    device_ca_file: FileName


class GrpcTable(Table):
    """[grpc]: where to listen. `insecure` leaves TLS off, on loopback addresses only, for tests.

    One certificate has at most `calls_each` calls and `bytes_each` of uploads under way; `idle_s` is how long a call
    waits for its caller.
    """

    device_listen: Listen = "127.0.0.1:7411"
    peer_listen: Listen = "127.0.0.1:7421"
    insecure: StrictBool = False
    concurrent_calls: Annotated[StrictInt, Field(ge=1, le=100_000)] = 4096
    calls_each: Annotated[StrictInt, Field(ge=1, le=100_000)] = 256
    bytes_each: Annotated[StrictInt, Field(ge=1 << 20, le=1 << 36)] = 16 << 20
    idle_s: Annotated[float, Field(ge=1, le=3600)] = 60.0


class MqttTable(Table):
    """[mqtt]: the broker; plaintext only on loopback addresses unless `insecure`.

    `inflight` is the broker's own limit of messages under way to one client, 20 for a default mosquitto: so many are
    taken in one group, and so many answers are under way.
    """

    broker: Endpoint
    inflight: Annotated[StrictInt, Field(ge=1, le=65_535)] = 20
    ca_file: FileName | None = None
    certificate_file: FileName | None = None
    key_file: FileName | None = None
    insecure: StrictBool = False


class PeerTable(Table):
    """[[peers]]: another aggregator."""

    id: Id
    operator: Named
    endpoint: Endpoint
    signing_public_key: PublicKey

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""
        return base64.b64decode(self.signing_public_key)


class LimitsTable(Table):
    """[limits]: what the operator allows."""

    largest_epsilon: Epsilon
    smallest_min_batch_size: Annotated[StrictInt, Field(ge=2, le=10**9)] = 10
    allow_exact_release: StrictBool = False
    sessions_per_device: Annotated[StrictInt, Field(ge=1, le=10_000)] = 16
    give_up_s: Annotated[float, Field(ge=1, le=30 * 86_400)] = 900.0
    call_timeout_s: Annotated[float, Field(ge=0.1, le=3600)] = 30.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.call_timeout_s > self.give_up_s:
            raise ValueError(
                f"call_timeout_s is {self.call_timeout_s:g}, allowed: at most give_up_s ({self.give_up_s:g})"
            )
        return self


class MetricsTable(Table):
    """[metrics]: where Prometheus reads; loopback unless `insecure`."""

    listen: Listen
    insecure: StrictBool = False


class LogTable(Table):
    """[log]: how much is said."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class WorkersTable(Table):
    """[workers]: processes for the arithmetic."""

    count: Annotated[StrictInt, Field(ge=1, le=256)] = 1


class AggregatorConfig(BaseSettings):
    """The whole configuration; paths are absolute once loaded."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=PREFIX, env_nested_delimiter="__", case_sensitive=False
    )

    aggregator: AggregatorTable
    keys: KeysTable
    tls: TlsTable
    grpc: GrpcTable = GrpcTable()
    mqtt: MqttTable | None = None
    peers: Annotated[tuple[PeerTable, ...], Field(min_length=1, max_length=64)]
    limits: LimitsTable
    metrics: MetricsTable | None = None
    log: LogTable = LogTable()
    workers: WorkersTable = WorkersTable()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before file; no .env file and no directory of secrets."""
        return (Environment(settings_cls, env_settings), init_settings)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        own, ids = self.aggregator.id, [peer.id for peer in self.peers]
        if own in ids:
            raise ValueError(f"peers: {own!r} is this aggregator itself")
        check_distinct("peers: id", ids)
        check_distinct("peers: signing_public_key", [peer.signing_public_key for peer in self.peers])
        check_distinct("peers: endpoint", [peer.endpoint for peer in self.peers])
        if self.grpc.peer_listen in [peer.endpoint for peer in self.peers]:
            raise ValueError(f"peers: endpoint {self.grpc.peer_listen!r} is this aggregator's own")
        if self.grpc.device_listen == self.grpc.peer_listen and split_listener(self.grpc.peer_listen)[1] != 0:
            raise ValueError(f"grpc.peer_listen is {self.grpc.peer_listen!r}, the same as grpc.device_listen")
        self._check_plaintext()
        return self

    def _check_plaintext(self) -> None:
        if self.grpc.insecure:
            for key, address in (("device_listen", self.grpc.device_listen), ("peer_listen", self.grpc.peer_listen)):
                if not _is_local(address):
                    raise ValueError(f"grpc.{key} is {address!r}; without TLS only loopback addresses are allowed")
        mqtt = self.mqtt
        if mqtt is not None and mqtt.ca_file is None and not mqtt.insecure and not _is_local(mqtt.broker):
            raise ValueError(f"mqtt.broker is {mqtt.broker!r}; beyond loopback it needs ca_file (TLS)")
        check_metrics_listener(self.metrics)


def check_distinct(what: str, values: Iterable[str]) -> None:
    """Refuse values that stand twice.

    Raises:
        ValueError: one does.
    """
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} stands there twice")
        seen.add(value)


def check_metrics_listener(metrics: MetricsTable | None) -> None:
    """Refuse to show metrics beyond this machine unless that is said.

    Raises:
        ValueError: it is not.
    """
    if metrics is not None and not metrics.insecure and not _is_local(metrics.listen):
        raise ValueError(f"metrics.listen is {metrics.listen!r}; beyond loopback it needs insecure = true")


def load_config(path: Path, environment: Mapping[str, str]) -> AggregatorConfig:
    """Return the checked configuration of a TOML file, relative paths taken from its directory.

    Raises:
        ConfigError: one line with the key, its value and what is allowed.
    """
    _refuse_secret_overrides(environment)
    return read_settings(path, AggregatorConfig, _PATH_KEYS)


def read_settings(path: Path, model: type[SettingsT], path_keys: PathKeys) -> SettingsT:
    """Return the checked settings of a TOML file; `path_keys` are the keys of each table that hold file names.

    Raises:
        ConfigError: one line with the key, its value and what is allowed.
    """
    content = _read(path)
    try:
        return model(**_absolute(content, path.parent, path_keys))
    except SettingsError as error:
        raise ConfigError(f"a variable {PREFIX}*: {error}; allowed for a whole table is JSON") from None
    except ValidationError as error:
        raise ConfigError(f"{_origin(path, error, model)}: {_first_fault(error, model)}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is not a file")
        data = path.read_bytes()[: _MAX_FILE_BYTES + 1]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {_MAX_FILE_BYTES} bytes, which is no configuration")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _refuse_secret_overrides(environment: Mapping[str, str]) -> None:
    for name in environment:
        parts = name.upper().removeprefix(PREFIX).split("__")
        if name.upper().startswith(PREFIX) and parts[0].lower() in _NO_OVERRIDE:
            raise ConfigError(f"{name}: [{parts[0].lower()}] comes from the file alone, never from a variable")


_PATH_KEYS: Final[PathKeys] = (
    ("aggregator", ("state_directory", "task_directory")),
    ("keys", ("signing_key_file", "hpke_key_directory")),
    ("tls", ("certificate_file", "key_file", "aggregator_ca_file", "device_ca_file")),
    ("mqtt", ("ca_file", "certificate_file", "key_file")),
)


def _absolute(content: dict[str, Any], directory: Path, path_keys: PathKeys) -> dict[str, Any]:
    """Make every path of the file absolute, so that a later change of directory changes nothing."""
    result = dict(content)
    for table, keys in path_keys:
        if isinstance(result.get(table), dict):
            values = dict(result[table])
            for key in keys:
                if isinstance(values.get(key), str) and values[key]:
                    values[key] = str((directory / values[key]).absolute())
            result[table] = values
    return result


def _origin(path: Path, error: ValidationError, model: type[BaseModel]) -> str:
    """Return where the first fault stands: in a variable, where one overrides the file, or in the file."""
    name = PREFIX + "__".join(str(part) for part in error.errors(include_url=False)[0]["loc"]).upper()
    overridden = issubclass(model, BaseSettings) and any(one.upper() == name for one in os.environ)
    return name if overridden else str(path)


def _first_fault(error: ValidationError, settings: type[BaseModel]) -> str:
    fault = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {place!r}{_suggestion(fault['loc'], settings)}"
    if fault["type"] == "missing":
        return f"key {place!r} is missing"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"]:
        return message
    return f"{place} is {shown(fault['input'])}: {message[:1].lower()}{message[1:]}"


def _suggestion(place: tuple[int | str, ...], settings: type[BaseModel]) -> str:
    """Return the nearest key that exists at this place of the file."""
    model: Any = settings
    for part in place[:-1]:
        if isinstance(part, int):
            continue
        model = model_in(model.model_fields[part].annotation)
    near = difflib.get_close_matches(str(place[-1]), list(model.model_fields), n=1)
    return f", did you mean {near[0]!r}?" if near else f"; there are: {', '.join(model.model_fields)}"
