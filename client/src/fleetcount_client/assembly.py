"""From settings to the parts of a device: identity, trust and the transport the settings name.

Reads key files; loads only the one transport that is wanted.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.channel.user_names import certified_name, key_name
from fleetcount_protocol.clock import SystemClock
from fleetcount_protocol.errors import SignatureError, UsageError
from fleetcount_protocol.ids import UserName
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.key_files import check_purpose
from fleetcount_transport.toml_table import ConfigError
from fleetcount_transport.trust_files import succeeded

from fleetcount_client.config import DeviceSettings, GrpcSettings, MqttSettings
from fleetcount_client.contact import TrustStore
from fleetcount_client.spool import Spool
from fleetcount_client.transport import Transport

if TYPE_CHECKING:
    from fleetcount_client.subscriptions import Subscriptions


def identity_of(settings: DeviceSettings) -> DeviceIdentity:
    """Return the device's certificate and key.

    Raises:
        ConfigError: a file that holds something else, a key that is not the certificate's, or no device's certificate.
    """
    try:
        identity = DeviceIdentity.load(settings.certificate_file, settings.key_file)
    except (UsageError, OSError) as error:
        raise ConfigError(f"device.certificate_file and device.key_file: {error}") from None
    check_purpose(settings.certificate_file, identity.certificate, Purpose.DEVICE)
    return identity


def trust_of(settings: DeviceSettings) -> TrustStore:
    """Return whom the device trusts; raises ConfigError for a succession that cannot be used."""
    return TrustStore(settings.deployment, trusted_by(settings))


def trusted_by(settings: DeviceSettings) -> list[TrustedAggregator]:
    """Return the aggregators that the settings name, each under its key and those that succeeded it.

    Raises:
        ConfigError: a succession cannot be used.
    """
    return [
        succeeded(
            TrustedAggregator(aggregator_id=one.id, operator=one.operator, signing_public_key=one.signing_public_key),
            one.succession_files,
        )
        for one in settings.aggregators
    ]


def book_of(settings: DeviceSettings, spool: Spool) -> "Subscriptions":
    """Return the question of a device for its owner to look at, join and leave, while it runs or not.

    Raises:
        ConfigError: a certificate file that holds something else.
    """
    from fleetcount_client.subscriptions import Subscriptions  # Only for who asks about questions.

    certificate = identity_of(settings).certificate
    return Subscriptions(
        policy=settings.policy,
        trust=trust_of(settings),
        spool=spool,
        clock=SystemClock(),
        source=SystemRandom(),
        first_valid=int(certificate.not_valid_before_utc.timestamp()),
        rule=settings.join,
    )


def transport_of(settings: DeviceSettings, heard: Callable[[str, str], None] | None = None) -> Transport:
    """Return the transport the settings name; `heard` is told of each aggregator that is asked by itself.

    Raises:
        ConfigError: its library is not installed, or a file of it cannot be used.
    """
    if settings.mqtt is not None:
        return _mqtt(settings, settings.mqtt)
    if settings.grpc is not None:
        return _grpc(settings, settings.grpc, heard)
    raise ConfigError("device.transport is missing; allowed is 'grpc' or 'mqtt'")


def _grpc(settings: DeviceSettings, grpc: GrpcSettings, heard: Callable[[str, str], None] | None) -> Transport:
    try:
        from fleetcount_transport.key_files import TlsFiles

        from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
    except ModuleNotFoundError as error:
        raise _not_installed("grpc", error) from None

    tls = None
    if grpc.ca_file is not None:
        # Read now, to refuse what cannot be used, and again for every new connection: the certificate may be renewed.
        tls = partial(TlsFiles.read, grpc.ca_file, settings.certificate_file, settings.key_file)
        tls()
    servers = [
        WindowServer(aggregator_id=one.id, endpoint=one.grpc_endpoint)
        for one in settings.aggregators
        if one.grpc_endpoint
    ]
    return GrpcTransport(
        deployment=settings.deployment,
        servers=servers,
        tls=tls,
        call_timeout_s=settings.delivery.call_timeout_s,
        insecure=grpc.insecure,
        relay=grpc.relay,
        proxy=grpc.proxy,
        heard=heard,
    )


def _mqtt(settings: DeviceSettings, mqtt: MqttSettings) -> Transport:
    try:
        from fleetcount_client.mqtt_transport import MqttLogin, MqttTransport  # Only this transport.
    except ModuleNotFoundError as error:
        raise _not_installed("mqtt", error) from None

    user = partial(_user, settings, mqtt)
    login = MqttLogin(
        username=mqtt.username,
        password_file=mqtt.password_file,
        ca_file=mqtt.ca_file,
        certificate_file=settings.certificate_file if mqtt.client_certificate else None,
        key_file=settings.key_file if mqtt.client_certificate else None,
    )
    # Read now, to refuse what cannot be used, and again for every new connection: the certificate may be renewed.
    for read in (user, login.password, login.tls_context):
        read()
    return MqttTransport(
        deployment=settings.deployment,
        broker=mqtt.broker,
        user=user,
        login=login,
        call_timeout_s=settings.delivery.call_timeout_s,
    )


def _not_installed(transport: str, error: ModuleNotFoundError) -> ConfigError:
    where = f"install fleetcount-client[{transport}] or fleetcount[{transport}]"
    return ConfigError(f"device.transport is {transport!r}; {where} ({error.name} is missing)")


def _user(settings: DeviceSettings, mqtt: MqttSettings) -> UserName:
    """Return the name by which the broker knows the device: its certificate's, or its key's where it asks for none.

    Raises:
        ConfigError: a certificate without such a name, or a user name that is not the certificate's: aggregators
            would take nothing from it.
    """
    certificate = identity_of(settings).certificate
    if not mqtt.client_certificate and mqtt.username is None:
        return key_name(certificate)
    try:
        name = certified_name(certificate)
    except SignatureError as error:
        raise ConfigError(f"device.certificate_file {settings.certificate_file}: {error}") from None
    if mqtt.username not in {None, name}:
        raise ConfigError(f"mqtt.username is {mqtt.username!a}, allowed: the certificate's common name, {name!a}")
    return name
