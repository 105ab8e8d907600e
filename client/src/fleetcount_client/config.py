"""A device's configuration file: strict TOML, read once, every wrong key refused by name.

Each section is a `@settings` class. Reads no secret: keys and passwords stay in their files until the device needs
them.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.ids import AggregatorId, is_loopback, split_endpoint
from fleetcount_transport.settings import (
    UnfitKeyError,
    insecure,
    names_of,
    read_rows,
    read_settings,
    read_table,
    setting,
    settings,
)
from fleetcount_transport.toml_table import ConfigError, Table, read_toml
from fleetcount_transport.toml_values import Range

from fleetcount_client.policy import JoinRule, OwnerPolicy, Trust, in_range
from fleetcount_client.renewal import RenewalSettings
from fleetcount_client.signal_config import read_signals
from fleetcount_client.signals import SignalSource
from fleetcount_client.timer import Retry

if TYPE_CHECKING:
    from fleetcount_client.private_places import PrivatePlaces

_SECTIONS: Final = (
    "device",
    "grpc",
    "mqtt",
    "policy",
    "aggregators",
    "delivery",
    "renewal",
    "signals",
    "questions",
    "private",
    "kuksa",
)
_NAME: Final = (r"[^\0-\x1f]{1,200}", "1 to 200 characters")
_DAY_S: Final = 86_400
_SHARE: Final = Range("(0, 1]")
_TEN_YEARS_S: Final = 315_360_000


def _state_file(table: Table, key: str) -> Path:
    path = table.file_name(key)
    if path.is_dir() or not path.parent.is_dir():
        raise table.refuse(key, "a file in an existing directory")
    return path


@settings
class DeviceTable:
    """[device]: whose device this is, where its state and its identity lie, and by which transport it sends."""

    deployment: str = setting(Table.deployment)
    state_file: Path = setting(_state_file)
    certificate_file: Path = setting(Table.existing_file)
    key_file: Path = setting(Table.private_file)
    transport: str = setting(Table.choice, ("grpc", "mqtt"))


@settings
class GrpcSettings:
    """[grpc]: mutual TLS; `ca_file` says who may speak as an aggregator, None only with `insecure`, on loopback.

    `relay` carries every call; `proxy` is an HTTP proxy; "" is none, whatever the environment says.
    """

    ca_file: Path | None = setting(Table.existing_file, default=None)
    relay: str = setting(Table.endpoint, default="")
    proxy: str = setting(Table.endpoint, default="")
    insecure: bool = setting(insecure, default=False)

    def __post_init__(self) -> None:
        if self.ca_file is None and not self.insecure:
            raise UnfitKeyError("ca_file", allowed="a file name")


@settings
class MqttSettings:
    """[mqtt]: the broker, "host:port"; TLS with `ca_file`, and mutual with `client_certificate` (the device's own)."""

    broker: str = setting(Table.endpoint)
    ca_file: Path | None = setting(Table.existing_file, default=None)
    client_certificate: bool = setting(Table.boolean, default=False)
    username: str | None = setting(Table.text, r"[^\0]{1,200}", "1 to 200 characters", default=None)
    password_file: Path | None = setting(Table.private_file, default=None)
    insecure: bool = setting(insecure, default=False)

    def __post_init__(self) -> None:
        if self.ca_file is None and not self.insecure and not is_loopback(split_endpoint(self.broker)[0]):
            raise UnfitKeyError(
                "broker", allowed="loopback without TLS; give ca_file, or insecure = true if you mean it"
            )
        if self.client_certificate and self.ca_file is None:
            raise UnfitKeyError("client_certificate", allowed="only together with ca_file")
        if self.password_file is not None and self.username is None:
            raise UnfitKeyError("password_file", allowed="only together with username")


@settings
class AggregatorSettings:
    """[[aggregators]]: one the owner trusts; `grpc_endpoint` is where windows are fetched from, "" when it has none.

    `succession_files` say what succeeded its signing key.
    """

    id: AggregatorId = setting(Table.aggregator_id)
    operator: str = setting(Table.text, *_NAME)
    signing_public_key: bytes = setting(Table.base64_bytes, 32)
    grpc_endpoint: str = setting(Table.endpoint, default="")
    succession_files: tuple[Path, ...] = setting(Table.file_names, default=())


@settings
class DeliverySettings:
    """[delivery]: how the device sends; see docs/embedding.md, "Delivery".

    Each part of a report leaves at a random time of its own in the first `spread` of its round; the rest is for
    re-sends. `retry_cap_s` is by default a minute, or `retry_base_s` where that is longer.
    """

    spread: Fraction = setting(Table.number, _SHARE, default=Fraction(4, 5))
    poll_interval_s: float = setting(Table.seconds, 1, _DAY_S, default=60.0)
    call_timeout_s: float = setting(Table.seconds, 0.1, 3600, default=20.0)
    retry_base_s: float = setting(Table.seconds, 0.01, 3600, default=0.5)
    retry_cap_s: float | None = setting(Table.seconds, 0.01, _DAY_S, default=None)
    session_lifetime_s: int = setting(Table.integer, 60, 31 * _DAY_S, default=_DAY_S)

    def __post_init__(self) -> None:
        in_range(self, "spread", 0, 1)
        in_range(self, "session_lifetime_s", 0, 31 * _DAY_S)
        for name in ("poll_interval_s", "call_timeout_s", "retry_base_s"):
            in_range(self, name, 0, _DAY_S)
        if self.retry_cap_s is not None and self.retry_cap_s < self.retry_base_s:
            raise UnfitKeyError("retry_cap_s", allowed=f"at least retry_base_s ({self.retry_base_s:g})")

    @property
    def retry(self) -> Retry:
        """When a call is made again."""
        cap = max(self.retry_base_s, 60.0) if self.retry_cap_s is None else self.retry_cap_s
        return Retry(base_s=self.retry_base_s, cap_s=cap)


@settings
class QuestionsTable:
    """[questions]: what a device does with a question that is allowed."""

    join: str = setting(Table.choice, tuple(one.value for one in JoinRule), default=JoinRule.ASK.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """Everything the configuration file says."""

    deployment: str
    state_file: Path
    certificate_file: Path
    key_file: Path
    grpc: GrpcSettings | None
    mqtt: MqttSettings | None
    policy: OwnerPolicy
    aggregators: tuple[AggregatorSettings, ...]
    delivery: DeliverySettings
    renewal: RenewalSettings
    signals: dict[str, SignalSource]
    join: JoinRule = JoinRule.ASK
    private: "PrivatePlaces | None" = None


def load_settings(path: Path) -> DeviceSettings:
    """Return the settings of a device's TOML file; file names in it are relative to it.

    Raises:
        ConfigError: anything unknown, missing, out of range or unsafe; one line with key, value and allowed range.
    """
    root = read_toml(path, _SECTIONS)
    device = read_settings(root, "device", DeviceTable)
    # A section that is not used must still be spelled right.
    root.section("grpc", names_of(GrpcSettings))
    root.section("mqtt", names_of(MqttSettings))
    policy = _policy(root)
    return DeviceSettings(
        deployment=device.deployment,
        state_file=device.state_file,
        certificate_file=device.certificate_file,
        key_file=device.key_file,
        grpc=read_settings(root, "grpc", GrpcSettings) if device.transport == "grpc" else None,
        mqtt=read_settings(root, "mqtt", MqttSettings) if device.transport == "mqtt" else None,
        policy=policy,
        aggregators=_aggregators(path, root, needs_endpoint=device.transport == "grpc"),
        delivery=read_settings(root, "delivery", DeliverySettings),
        renewal=_renewal(root),
        signals=read_signals(root),
        join=JoinRule(read_settings(root, "questions", QuestionsTable).join),
        private=_private(root.section("private", None), sorted(policy.signals)),
    )


def _renewal(root: Table) -> RenewalSettings:
    made = read_settings(root, "renewal", RenewalSettings)
    if not made.command and (table := root.section("renewal", None)).has("retry_s"):
        raise table.refuse("retry_s", "only with a command, which is run again")
    return made


def _policy(root: Table) -> OwnerPolicy:
    table = root.section("policy", (*names_of(OwnerPolicy), "fresh_ledger", "total_exposure"))
    if table.has("total_exposure"):
        allowed = 'trust = "no operator", with largest_chance and largest_expected_answers as limits'
        raise table.refuse("total_exposure", f"nothing: the sum has become two; {allowed}")
    wary = f"trust = {Trust.NO_OPERATOR.value!r}"
    if table.choice("trust", [one.value for one in Trust], Trust.ONE_HONEST_OPERATOR.value) != Trust.NO_OPERATOR.value:
        for key in filter(table.has, ("largest_chance", "largest_expected_answers")):
            raise table.refuse(key, f"only with {wary}: nothing else is held against it")
    elif table.boolean("allow_direct", default=False):
        raise table.refuse("allow_direct", f"nothing but false beside {wary}, which refuses every direct question")
    period = table.integer("budget_period_s", 3600, _TEN_YEARS_S, 2_592_000)
    if table.choice("fresh_ledger", ("wait", "allow"), "wait") == "allow":
        period = 0
        for key in filter(table.has, ("fresh_ledger_wait_s", "enrolment_wait_s")):
            raise table.refuse(key, "nothing beside fresh_ledger = 'allow', which waits for no ledger")
    wait = table.integer("fresh_ledger_wait_s", 0, _TEN_YEARS_S, period)
    enrolment = table.integer("enrolment_wait_s", 0, wait, wait)
    return read_table(table, OwnerPolicy, fresh_ledger_wait_s=wait, enrolment_wait_s=enrolment)


def _aggregators(path: Path, root: Table, *, needs_endpoint: bool) -> tuple[AggregatorSettings, ...]:
    trusted = read_rows(root, "aggregators", AggregatorSettings, least=2, most=64, what="trusted aggregators")
    _check_distinct(path, trusted)
    if needs_endpoint and not any(aggregator.grpc_endpoint for aggregator in trusted):
        raise ConfigError(
            f"{path}: aggregators.grpc_endpoint is missing in every entry; give where windows are fetched"
        )
    return trusted


def _check_distinct(path: Path, trusted: tuple[AggregatorSettings, ...]) -> None:
    if len({aggregator.operator.casefold() for aggregator in trusted}) < 2:
        raise ConfigError(f"{path}: aggregators.operator names fewer than 2 distinct operators; allowed are 2 or more")
    for what, values in (
        ("id", [str(aggregator.id) for aggregator in trusted]),
        ("signing_public_key", [aggregator.signing_public_key.hex() for aggregator in trusted]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"{path}: aggregators.{what} {twice!r} is given twice; allowed is one entry each")


def _private(table: Table, allowed: list[str]) -> "PrivatePlaces | None":
    for name in table.content:
        if name not in allowed:
            # A misspelt one would hide nothing.
            known = ", ".join(allowed) or "none"
            raise table.wrong(name, f"is no signal of policy.signals; allowed are {known}{did_you_mean(name, allowed)}")
    if not table.content:
        return None
    from fleetcount_client.private_config import read_private  # Only where something is private.

    return read_private(table)
