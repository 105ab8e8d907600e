"""The connections of a fleet process's devices to the aggregators: one for each device, or one for all.

They are the client's own transports, but for `SharedMqtt`, and change no message. Over gRPC a device of its own
connection has its own certificate, and a shared connection one for all; over MQTT a device has a user name that follows
from its certificate.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_client.transport import PassingTransport, Transport
from fleetcount_protocol.channel.certificates import CertificateAuthority, key_pem
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_protocol.window.fields import Aggregator

from fleetcount_simulator.network.fleet_spec import SHARED, FleetSpec
from fleetcount_simulator.network.shared_transport import SharedTransport

if TYPE_CHECKING:
    from fleetcount_transport.key_files import TlsFiles


_ResultT = TypeVar("_ResultT")


class Connections:
    """The transports of one process's devices, as its `FleetSpec` says; `authority` certifies further devices."""

    def __init__(self, spec: FleetSpec, authority: CertificateAuthority) -> None:
        self._spec = spec
        self._authority = authority
        self._authorities = (Path(spec.authorities) / "aggregators.crt").read_bytes()
        self._gate = asyncio.Semaphore(spec.at_once)
        self._shared = SharedTransport(self._all_devices()) if spec.connections == SHARED else None
        self.all_stay = self._shared is not None or spec.at_once >= len(spec.numbers)
        """Whether all devices stay connected from the first session to the last receipt."""

    @property
    def idle_close_s(self) -> float:
        """Idle seconds after which a device closes its connection: infinite, or 0 where other devices wait for one."""
        return math.inf if self.all_stay else 0.0

    def of(self, identity: DeviceIdentity) -> Transport:
        """Return the transport of one device; it connects on first use."""
        return self._shared or GatedTransport(self._own(identity), self._gate)

    def question_transport(self) -> Transport:
        """Return the transport that asks for questions, shared or of one more device; the caller closes it."""
        return self._shared or self._own(DeviceIdentity.generate(self._authority))

    def shared_grpc(self) -> SharedTransport:
        """Return a new gRPC connection that all devices share, for calls after a window; the caller disconnects it."""
        return SharedTransport(self._own(DeviceIdentity.generate(self._authority), "grpc"))

    async def close(self) -> None:
        """Close the shared connection; a device closes its own."""
        if self._shared is not None:
            await self._shared.disconnect()

    def _all_devices(self) -> Transport:
        spec = self._spec
        if spec.transport == "mqtt":
            from fleetcount_simulator.network.mqtt import SharedMqtt  # Loads the MQTT library only where it is used.

            return SharedMqtt(deployment=spec.deployment, broker=spec.broker, call_timeout_s=spec.call_timeout_s)
        return self._own(DeviceIdentity.generate(self._authority))

    def _own(self, identity: DeviceIdentity, transport: str = "") -> Transport:
        spec = self._spec
        return own_transport(
            transport or spec.transport,
            spec.aggregators,
            identity,
            deployment=spec.deployment,
            broker=spec.broker,
            relay=spec.relay,
            authorities=self._authorities,
            call_timeout_s=spec.call_timeout_s,
        )


def own_transport(
    transport: str,
    aggregators: Sequence[Aggregator],
    identity: DeviceIdentity,
    *,
    deployment: str,
    broker: str,
    authorities: bytes,
    call_timeout_s: float,
    relay: str = "",
) -> Transport:
    """Return the transport of one device: "mqtt" to `broker`, or "grpc" to `aggregators` or through `relay`.

    `authorities` (PEM) certify aggregators and the relay.
    """
    if transport == "mqtt":
        from fleetcount_client.mqtt_transport import MqttTransport  # Loads the MQTT library only where it is used.

        name = key_name(identity.certificate)  # The broker of a run requires no registered user name.
        return MqttTransport(deployment=deployment, broker=broker, user=lambda: name, call_timeout_s=call_timeout_s)
    from fleetcount_client.grpc_transport import GrpcTransport, WindowServer  # As above, for gRPC.

    servers = [WindowServer(aggregator_id=one.aggregator_id, endpoint=one.grpc_endpoint) for one in aggregators]
    tls = tls_of(identity, authorities)
    return GrpcTransport(deployment=deployment, servers=servers, tls=tls, call_timeout_s=call_timeout_s, relay=relay)


def tls_of(identity: DeviceIdentity, authorities: bytes) -> "TlsFiles":
    """Return the TLS files of a device that calls aggregators under these authorities (PEM)."""
    from fleetcount_transport.key_files import TlsFiles

    return TlsFiles(
        authorities=authorities,
        certificate=identity.certificate.public_bytes(Encoding.PEM),
        private_key=key_pem(identity.private_key),
    )


class GatedTransport(PassingTransport):
    """A device's own transport behind a semaphore that limits the connected devices; `close` releases it."""

    def __init__(self, inner: Transport, gate: asyncio.Semaphore) -> None:
        super().__init__(inner)
        self._gate = gate
        self._entering = asyncio.Lock()
        self._entered = False

    async def close(self) -> None:
        """Close the connection and release the semaphore."""
        try:
            await super().close()
        finally:
            if self._entered:
                self._entered = False
                self._gate.release()

    async def _passed(self, party: str, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        async with self._entering:
            if not self._entered:
                await self._gate.acquire()
                self._entered = True
        return await call()
