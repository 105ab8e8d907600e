"""What a device embeds to answer counting questions: `Device`, the owner's policy, transports and the values they
exchange.

What is exported is for users (docs/api.md says how stable); this repository imports from the modules. Loads nothing
before a name is used: never NumPy, and a transport's library only when it is used.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Circle",
    "ConfigError",
    "DeliverySettings",
    "Device",
    "DeviceSettings",
    "DeviceStatus",
    "FileSource",
    "JoinRule",
    "ManualTimer",
    "MemoryTransport",
    "Outcome",
    "OutcomeKind",
    "OwnerPolicy",
    "PolicyRefusal",
    "Polygon",
    "PrivatePlaces",
    "PrivateSignal",
    "Reading",
    "SignalFault",
    "SignalSource",
    "SignalStatus",
    "SignalUnavailable",
    "SpoolFile",
    "SystemTimer",
    "Transport",
    "Trust",
    "TrustStore",
    "Unreachable",
    "constant",
    "load_settings",
]

if TYPE_CHECKING:
    from fleetcount_transport.toml_table import ConfigError

    from fleetcount_client.config import DeliverySettings, DeviceSettings, load_settings
    from fleetcount_client.contact import DeviceStatus, Outcome, OutcomeKind, SignalStatus, TrustStore
    from fleetcount_client.device import Device
    from fleetcount_client.memory_transport import MemoryTransport
    from fleetcount_client.policy import JoinRule, OwnerPolicy, PolicyRefusal, Trust
    from fleetcount_client.private_places import Circle, Polygon, PrivatePlaces, PrivateSignal
    from fleetcount_client.signals import FileSource, Reading, SignalFault, SignalSource, SignalUnavailable, constant
    from fleetcount_client.spool import SpoolFile
    from fleetcount_client.timer import ManualTimer, SystemTimer
    from fleetcount_client.transport import Transport, Unreachable
else:
    from fleetcount_mechanisms.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "config": "ConfigError DeliverySettings DeviceSettings load_settings",
            "contact": "DeviceStatus Outcome OutcomeKind SignalStatus TrustStore",
            "device": "Device",
            "memory_transport": "MemoryTransport",
            "policy": "JoinRule OwnerPolicy PolicyRefusal Trust",
            "private_places": "Circle Polygon PrivatePlaces PrivateSignal",
            "signals": "FileSource Reading SignalFault SignalSource SignalUnavailable constant",
            "spool": "SpoolFile",
            "timer": "ManualTimer SystemTimer",
            "transport": "Transport Unreachable",
        },
    )
