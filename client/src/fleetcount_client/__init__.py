"""What a device embeds to answer counting tasks: `Device`, the owner's policy, transports and the values they exchange.

Never loads NumPy; a transport's library is loaded only when that transport is used.
"""

from fleetcount_client.config import ConfigError, DeliverySettings, DeviceSettings, load_settings
from fleetcount_client.device import Device
from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import OwnerPolicy, PolicyRefusal
from fleetcount_client.signals import FileSource, SignalSource, SignalUnavailable, constant
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.timer import ManualTimer, SystemTimer, Timer
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_client.trust import TrustStore

__all__ = [
    "ConfigError",
    "DeliverySettings",
    "Device",
    "DeviceSettings",
    "FileSource",
    "ManualTimer",
    "Outcome",
    "OutcomeKind",
    "OwnerPolicy",
    "PolicyRefusal",
    "SignalSource",
    "SignalUnavailable",
    "Spool",
    "SpoolFile",
    "SystemTimer",
    "Timer",
    "Transport",
    "TrustStore",
    "Unreachable",
    "constant",
    "load_settings",
]
