"""The way of one simulated vehicle to the aggregators: the client's own gRPC or MQTT transport, with its certificate.

Chooses and wires; adds nothing of its own to what is sent.
"""

from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fleetcount_client import Transport
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.ids import AggregatorId

from fleetcount_simulator.network.fleet_spec import FleetSpec

__all__ = ["vehicle_transport"]


def vehicle_transport(spec: FleetSpec, identity: DeviceIdentity, call_timeout_s: float) -> Transport:
    """Return a new transport for one vehicle; nothing is connected yet."""
    if spec.transport == "mqtt":
        from fleetcount_client.mqtt_transport import MqttTransport  # Each library only where it is used.

        return MqttTransport(deployment=spec.deployment, broker=spec.broker, call_timeout_s=call_timeout_s)
    from fleetcount_client.grpc_transport import GrpcTransport, TaskServer, TlsFiles  # As above.

    tls = TlsFiles(
        authorities=_authorities(spec.aggregator_ca_file),
        certificate=identity.certificate.public_bytes(Encoding.PEM),
        private_key=identity.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    servers = [
        TaskServer(aggregator_id=AggregatorId(party.aggregator_id), endpoint=party.grpc_endpoint)
        for party in spec.aggregators
    ]
    return GrpcTransport(deployment=spec.deployment, servers=servers, tls=tls, call_timeout_s=call_timeout_s)


@lru_cache(maxsize=1)
def _authorities(path: str) -> bytes:
    return Path(path).read_bytes()
