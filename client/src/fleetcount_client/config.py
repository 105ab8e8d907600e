"""A device's configuration file: strict TOML, read once, every wrong key refused by name.

Reads no secret: keys and passwords stay in their files until the device needs them.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.ids import AggregatorId, is_loopback, split_endpoint
from fleetcount_transport.toml_table import ConfigError, Table, read_toml
from fleetcount_transport.toml_values import Range

from fleetcount_client.policy import JoinRule, OwnerPolicy, Trust
from fleetcount_client.renewal import RenewalSettings
from fleetcount_client.signals import FileSource, SignalSource, constant
from fleetcount_client.timer import Retry

if TYPE_CHECKING:
    from fleetcount_client.kuksa import Databroker
    from fleetcount_client.private_places import PrivatePlaces

_SOURCES: Final = ("file", "value", "lines", "socket", "kuksa")
_VSS_PATH: Final = r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*"
_DAY_S: Final = 86_400
_SHARE: Final = Range("(0, 1]")
_EPSILON: Final = Range("(0, 20]")
_TOTAL: Final = Range("(0, 700]")
_DELTA: Final = Range("(0, 1/1000]")
_ANSWERS: Final = Range("(0, 1000000]")
_TEN_YEARS_S: Final = 315_360_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorSettings:
    """An aggregator the owner trusts; `grpc_endpoint` is where windows are fetched from, "" when it has none.

    `succession_files` say what succeeded its signing key.
    """

    aggregator_id: AggregatorId
    operator: str
    signing_public_key: bytes
    grpc_endpoint: str = ""
    succession_files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Mutual TLS: `ca_file` says who may speak as an aggregator; None only with `insecure`, and only on loopback.

    `relay` is "host:port" of a relay that carries every call; "" calls the aggregators themselves.
    """

    ca_file: Path | None
    relay: str = ""
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSettings:
    """The broker, "host:port"; TLS with `ca_file`, and mutual with `client_certificate` (the device's own)."""

    broker: str
    ca_file: Path | None = None
    client_certificate: bool = False
    username: str | None = None
    password_file: Path | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """How the device sends: see docs/embedding.md, "Delivery".

    Each part of a report leaves at a random time of its own in the first `spread` of its round; the rest is for
    re-sends.
    """

    spread: Fraction = Fraction(4, 5)
    poll_interval_s: float = 60.0
    call_timeout_s: float = 20.0
    retry: Retry = Retry()  # noqa: RUF009 - Retry is frozen
    session_lifetime_s: int = _DAY_S


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
    device = root.section("device", _DEVICE_KEYS)
    transport = device.choice("transport", ("grpc", "mqtt"))
    state_file = device.file_name("state_file")
    if not state_file.parent.is_dir():
        raise device.refuse("state_file", f"a file in a directory that exists ({state_file.parent} does not)")
    # A section that is not used must still be spelled right.
    root.section("grpc", _GRPC_KEYS)
    root.section("mqtt", _MQTT_KEYS)
    return DeviceSettings(
        deployment=device.deployment("deployment"),
        state_file=state_file,
        certificate_file=device.existing_file("certificate_file"),
        key_file=device.private_file("key_file"),
        grpc=_grpc(root) if transport == "grpc" else None,
        mqtt=_mqtt(root) if transport == "mqtt" else None,
        policy=_policy(root),
        aggregators=_aggregators(path, root, needs_endpoint=transport == "grpc"),
        delivery=_delivery(root),
        renewal=_renewal(root),
        signals=_signals(root),
        join=JoinRule(root.section("questions", ("join",)).choice("join", [one.value for one in JoinRule], "ask")),
        private=_private(root),
    )


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
_DEVICE_KEYS: Final = ("deployment", "state_file", "certificate_file", "key_file", "transport")
_GRPC_KEYS: Final = ("ca_file", "relay", "insecure")
_MQTT_KEYS: Final = ("broker", "ca_file", "client_certificate", "username", "password_file", "insecure")
_POLICY_KEYS: Final = (
    "signals",
    "largest_epsilon",
    "largest_local_epsilon",
    "largest_sampling_rate",
    "smallest_min_batch_size",
    "total_epsilon",
    "total_delta",
    "total_exposure",
    "trust",
    "largest_chance",
    "largest_expected_answers",
    "budget_period_s",
    "fresh_ledger",
    "fresh_ledger_wait_s",
    "enrolment_wait_s",
    "allow_direct",
    "allow_exact_release",
    "allow_one_sided",
)
_DELIVERY_KEYS: Final = (
    "spread",
    "poll_interval_s",
    "call_timeout_s",
    "retry_base_s",
    "retry_cap_s",
    "session_lifetime_s",
)


def _grpc(root: Table) -> GrpcSettings:
    table = root.section("grpc", _GRPC_KEYS)
    insecure = table.boolean("insecure", default=False)
    ca_file = table.existing_file("ca_file") if table.has("ca_file") or not insecure else None
    relay = table.endpoint("relay") if table.has("relay") else ""
    return GrpcSettings(ca_file=ca_file, relay=relay, insecure=insecure)


def _mqtt(root: Table) -> MqttSettings:
    table = root.section("mqtt", _MQTT_KEYS)
    broker = table.endpoint("broker")
    settings = MqttSettings(
        broker=broker,
        ca_file=table.existing_file("ca_file") if table.has("ca_file") else None,
        client_certificate=table.boolean("client_certificate", default=False),
        username=table.text("username", r"[^\0]{1,200}", "1 to 200 characters") if table.has("username") else None,
        password_file=table.private_file("password_file") if table.has("password_file") else None,
        insecure=table.boolean("insecure", default=False),
    )
    if settings.ca_file is None and not settings.insecure and not is_loopback(split_endpoint(broker)[0]):
        raise table.refuse("broker", "loopback without TLS; give ca_file, or insecure = true if you mean it")
    if settings.client_certificate and settings.ca_file is None:
        raise table.refuse("client_certificate", "only together with ca_file")
    if settings.password_file is not None and settings.username is None:
        raise table.refuse("password_file", "only together with username")
    return settings


def _policy(root: Table) -> OwnerPolicy:
    table = root.section("policy", _POLICY_KEYS)
    if table.has("total_exposure"):
        allowed = 'trust = "no operator", with largest_chance and largest_expected_answers as limits'
        raise table.refuse("total_exposure", f"nothing: the sum has become two; {allowed}")
    period = table.integer("budget_period_s", 3600, _TEN_YEARS_S, 2_592_000)
    wait = table.integer("fresh_ledger_wait_s", 0, _TEN_YEARS_S, period)
    if table.choice("fresh_ledger", ("wait", "allow"), "wait") == "allow":
        wait = 0
    trust = table.choice("trust", [one.value for one in Trust], Trust.ONE_HONEST_OPERATOR.value)
    return OwnerPolicy(
        signals=frozenset(_signal_names(table)),
        largest_epsilon=table.number("largest_epsilon", _EPSILON, Fraction(1)),
        largest_local_epsilon=table.number("largest_local_epsilon", _EPSILON, Fraction(4)),
        largest_sampling_rate=table.number("largest_sampling_rate", _SHARE, Fraction(1, 2)),
        smallest_min_batch_size=table.integer("smallest_min_batch_size", 2, 10**9, 10),
        total_epsilon=table.number("total_epsilon", _TOTAL, Fraction(10)),
        total_delta=table.number("total_delta", _DELTA, Fraction(1, 10**9)),
        trust=Trust(trust),
        largest_chance=table.number("largest_chance", _SHARE, Fraction(1, 2)),
        largest_expected_answers=table.number("largest_expected_answers", _ANSWERS, Fraction(360)),
        budget_period_s=period,
        fresh_ledger_wait_s=wait,
        enrolment_wait_s=min(wait, table.integer("enrolment_wait_s", 0, wait or _TEN_YEARS_S, wait)),
        allow_direct=table.boolean("allow_direct", default=False),
        allow_exact_release=table.boolean("allow_exact_release", default=False),
        allow_one_sided=table.boolean("allow_one_sided", default=False),
    )


def _signal_names(table: Table) -> list[str]:
    names = table.raw("signals")
    if not isinstance(names, list):
        raise table.refuse("signals", 'a list of VSS paths: ["Vehicle.Speed"]')
    paths = cast("list[object]", names)
    if not all(isinstance(name, str) and re.fullmatch(_VSS_PATH, name) for name in paths):
        raise table.refuse("signals", 'a list of VSS paths: ["Vehicle.Speed"]')
    return [str(name) for name in paths]


def _aggregators(path: Path, root: Table, *, needs_endpoint: bool) -> tuple[AggregatorSettings, ...]:
    known = ("id", "operator", "signing_public_key", "grpc_endpoint", "succession_files")
    rows = root.sections("aggregators", known, least=2, most=64, what="trusted aggregators")
    trusted = tuple(map(_aggregator, rows))
    _check_distinct(path, trusted)
    if needs_endpoint and not any(aggregator.grpc_endpoint for aggregator in trusted):
        raise ConfigError(
            f"{path}: aggregators.grpc_endpoint is missing in every entry; give where windows are fetched"
        )
    return trusted


def _aggregator(table: Table) -> AggregatorSettings:
    return AggregatorSettings(
        aggregator_id=table.aggregator_id("id"),
        operator=table.text("operator", r"[^\0-\x1f]{1,200}", "1 to 200 characters"),
        signing_public_key=table.base64_bytes("signing_public_key", 32),
        grpc_endpoint=table.endpoint("grpc_endpoint") if table.has("grpc_endpoint") else "",
        succession_files=table.file_names("succession_files"),
    )


def _check_distinct(path: Path, trusted: tuple[AggregatorSettings, ...]) -> None:
    if len({aggregator.operator.casefold() for aggregator in trusted}) < 2:
        raise ConfigError(f"{path}: aggregators.operator names fewer than 2 distinct operators; allowed are 2 or more")
    for what, values in (
        ("id", [str(aggregator.aggregator_id) for aggregator in trusted]),
        ("signing_public_key", [aggregator.signing_public_key.hex() for aggregator in trusted]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"{path}: aggregators.{what} {twice!r} is given twice; allowed is one entry each")


def _delivery(root: Table) -> DeliverySettings:
    table = root.section("delivery", _DELIVERY_KEYS)
    base = table.seconds("retry_base_s", 0.01, 3600, 0.5)
    cap = table.seconds("retry_cap_s", 0.01, _DAY_S, max(base, 60.0))
    if cap < base:
        raise table.refuse("retry_cap_s", f"at least retry_base_s ({base:g})")
    return DeliverySettings(
        spread=table.number("spread", _SHARE, Fraction(4, 5)),
        poll_interval_s=table.seconds("poll_interval_s", 1, _DAY_S, 60.0),
        call_timeout_s=table.seconds("call_timeout_s", 0.1, 3600, 20.0),
        retry=Retry(base_s=base, cap_s=cap),
        session_lifetime_s=table.integer("session_lifetime_s", 60, 31 * _DAY_S, _DAY_S),
    )


def _renewal(root: Table) -> RenewalSettings:
    table = root.section("renewal", ("before_s", "command", "retry_s"))
    defaults = RenewalSettings()
    return RenewalSettings(
        before_s=table.integer("before_s", 0, 366 * _DAY_S, defaults.before_s),
        command=_command(table) if table.has("command") else (),
        retry_s=table.seconds("retry_s", 1, 31 * _DAY_S, defaults.retry_s),
    )


def _command(table: Table) -> tuple[str, ...]:
    words = table.raw("command")
    listed = cast("list[object]", words) if isinstance(words, list) else []
    if not 1 <= len(listed) <= 64 or not all(isinstance(word, str) and word and "\0" not in word for word in listed):
        raise table.refuse("command", 'a program and its arguments: ["/usr/bin/fetch", "certificate"]')
    return tuple(map(str, listed))


def _signals(root: Table) -> dict[str, SignalSource]:
    table = root.section("signals", None)
    databroker = _databroker(root)
    return {name: _signal(table, name, databroker) for name in table.content}


def _databroker(root: Table) -> "Databroker | None":
    if not root.has("kuksa"):
        return None
    from fleetcount_client.kuksa_config import DATABROKER_KEYS, read_databroker  # Only where there is one.

    return read_databroker(root.section("kuksa", DATABROKER_KEYS))


def _private(root: Table) -> "PrivatePlaces | None":
    table, allowed = root.section("private", None), _signal_names(root.section("policy", _POLICY_KEYS))
    for name in table.content:
        if name not in allowed:
            # A misspelt one would hide nothing.
            known = ", ".join(allowed) or "none"
            raise table.wrong(name, f"is no signal of policy.signals; allowed are {known}{did_you_mean(name, allowed)}")
    if not table.content:
        return None
    from fleetcount_client.private_config import read_private  # Only where something is private.

    return read_private(table)


def _signal(signals: Table, name: str, databroker: "Databroker | None") -> SignalSource:
    given = [key for key in _SOURCES if signals.section(name, None).has(key)]
    if len(given) > 1:
        raise signals.wrong(name, f"has {' and '.join(given)}; allowed is exactly one of {', '.join(_SOURCES)}")
    if given == ["kuksa"]:
        from fleetcount_client.kuksa_config import SIGNAL_KEYS, read_signal_of  # As above.

        if databroker is None:
            raise signals.wrong(name, "reads from kuksa; give the section [kuksa] with its address")
        return read_signal_of(signals.section(name, SIGNAL_KEYS), databroker)
    if given in (["lines"], ["socket"]):
        return _lines(signals.section(name, (*given, "key", "time", "fresh_s")), given[0], name)
    table = signals.section(name, ("file", "value"))
    if not given:
        raise signals.wrong(name, f"has no source; allowed is exactly one of {', '.join(_SOURCES)}")
    if given == ["file"]:
        return FileSource(table.file_name("file"))
    value = table.raw("value")
    if not isinstance(value, bool | int | float | str):
        raise table.refuse("value", "a number, a text, true or false")
    return constant(value)


def _lines(table: Table, kind: str, name: str) -> SignalSource:
    from fleetcount_client.line_source import LineSource, LineValue  # Only where signals are lines.

    key = table.raw("key") if table.has("key") else name
    keys = cast("list[object]", key) if isinstance(key, list) else [key]
    if len(keys) != (2 if isinstance(key, list) else 1) or not all(isinstance(one, str) and one for one in keys):
        raise table.refuse("key", 'a member of the line, "speed", or two: ["x", "y"]')
    if table.has("fresh_s") and not table.has("time"):
        raise table.refuse("fresh_s", "only together with time, the member that holds a line's time")
    value = LineValue(
        keys=tuple(map(str, keys)),
        time=table.text("time", r"[^\0-\x1f]{1,200}", "1 to 200 characters") if table.has("time") else "",
        fresh_s=table.seconds("fresh_s", 0.1, _DAY_S, 60.0),
    )
    if kind == "lines":
        return LineSource(table.file_name("lines"), value)
    if re.fullmatch(r"unix:/[^\0]{1,100}", address := str(table.raw("socket"))):
        return LineSource(address, value)
    if not is_loopback(split_endpoint(table.endpoint("socket"))[0]):
        raise table.refuse("socket", 'a socket of this machine: "127.0.0.1:PORT" or "unix:/PATH"')
    return LineSource(table.endpoint("socket"), value)
