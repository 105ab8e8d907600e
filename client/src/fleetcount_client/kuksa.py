"""Signals of a KUKSA databroker (gRPC, kuksa.val.v2): what the vehicle says now, in the units a window asks in.

A value is asked for when a question needs it and at no other time (decision 47). Never keeps, logs or shows a
value; never holds the event loop; never says more about the token than where it lies.
"""

import asyncio
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.clock import Clock, SystemClock
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import is_loopback, split_endpoint
from fleetcount_protocol.window.domain import SquareGrid, ValueDomain
from fleetcount_protocol.window.signal import Signal
from fleetcount_transport.key_files import read_public_file, read_secret
from fleetcount_transport.lost_reasons import call_reason
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_client.contact import Contact
from fleetcount_client.private_places import UtmZone
from fleetcount_client.signals import MAX_SIGNAL_BYTES, Reading, SignalUnavailable
from fleetcount_client.timer import Backoff, Retry

if TYPE_CHECKING:  # The libraries of gRPC and its messages are loaded with the first question.
    import grpc.aio
    from fleetcount_protocol.v1.kuksa_pb2 import Datapoint, GetValuesResponse

_LOG: Final = logging.getLogger(__name__)
_GET_VALUES: Final = "/kuksa.val.v2.VAL/GetValues"
_MAX_ANSWER_BYTES: Final = 65_536
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/=-]{1,16000}")
_RETRY: Final = Retry(base_s=0.1, cap_s=1.0)
_WORTH_ANOTHER_TRY: Final = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    # A connection that failed for one question is nobody else's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_DEGREES: Final = 4326
"""The code of longitude and latitude on WGS 84 in the EPSG register."""
_NUMBERS: Final = frozenset({"int32", "int64", "uint32", "uint64", "float", "double"})


@settings
class DatabrokerSettings:
    """[kuksa]: where a databroker is, "host:port"; plaintext without `ca_file`, beyond loopback only if `insecure`.

    `server_name` is the name its certificate carries where that is not the host, "" for the host. `token_file` holds a
    JSON Web Token, which is read anew for each question. A question is given up after `timeout_s`.
    """

    address: str = setting(Table.endpoint)
    ca_file: Path | None = setting(Table.existing_file, default=None)
    server_name: str = setting(Table.text, r"[A-Za-z0-9._-]{1,253}", "a host name", default="")
    token_file: Path | None = setting(Table.private_file, default=None)
    timeout_s: float = setting(Table.seconds, 0.1, 20, default=2.0)
    insecure: bool = setting(Table.boolean, default=False)

    def __post_init__(self) -> None:
        encrypted, loopback = self.ca_file is not None, is_loopback(split_endpoint(self.address)[0])
        if not encrypted and not loopback and not self.insecure:
            raise UnfitKeyError(
                "address", allowed="loopback without TLS; give ca_file, or insecure = true if you mean it"
            )
        if self.token_file is not None and not encrypted and not loopback:
            raise UnfitKeyError("token_file", allowed="only together with ca_file: a token would travel in plaintext")
        if self.server_name and not encrypted:
            raise UnfitKeyError("server_name", allowed="only together with ca_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class VehicleSignal:
    """Which leaves of the VSS tree make a reading, and in which units.

    One path is read as it stands; a number v becomes `factor` * v + `offset`. Two paths are longitude and latitude in
    degrees and become metres of `zone` plus `offset_x` and `offset_y`, or without a zone stay degrees. A value whose
    time differs from the device's by more than `fresh_s` seconds, or that has no time, is no value.
    """

    paths: tuple[str, ...]
    fresh_s: float
    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)
    zone: UtmZone | None = None
    offset_x: Fraction = Fraction(0)
    offset_y: Fraction = Fraction(0)

    def reading_of(self, points: "Sequence[Datapoint]", now: float) -> Reading:
        """Return what data points, one a path, mean at `now` (Unix seconds); None where one has no fresh value."""
        if not all(_is_fresh(point, now, self.fresh_s) for point in points):
            return None
        if len(points) == 1:
            return self._single(points[0])
        longitude, latitude = (_number(point) for point in points)
        if longitude is None or latitude is None:
            return None
        place = (longitude, latitude) if self.zone is None else self.zone.metres(longitude, latitude)
        return None if place is None else (place[0] + float(self.offset_x), place[1] + float(self.offset_y))

    def misplaced(self, domain: ValueDomain) -> str:
        """Return why these positions are no places of a domain's frame; "" where they are, or where there is none."""
        frame = domain.frame if isinstance(domain, SquareGrid) else None
        systems = (_DEGREES,) if self.zone is None else self.zone.systems
        own, asked = (self.offset_x, self.offset_y), frame and (Fraction(frame.offset_x), Fraction(frame.offset_y))
        if frame is None or len(self.paths) == 1 or (frame.epsg in systems and own == asked):
            return ""
        unit = "degrees" if self.zone is None else f"metres of UTM {self.zone}"
        where = f"EPSG {frame.epsg} with offset ({frame.offset_x}, {frame.offset_y})"
        mine = f"{unit} with offset ({float(own[0]):.15g}, {float(own[1]):.15g})"
        return f"its positions are {mine}, but the window's grid is in {where}"

    def _single(self, point: "Datapoint") -> Reading:
        kind = point.value.WhichOneof("typed_value")
        if kind == "string_array":
            values = point.value.string_array.values
            return frozenset(values) if all(map(_is_short, values)) else None
        number = _number(point)
        if number is None:
            return _text(point, kind)
        if self.factor == 1 and self.offset == 0:
            return number
        return float(self.factor * Fraction(number) + self.offset)


def _is_fresh(point: "Datapoint", now: float, fresh_s: float) -> bool:
    # A value of the future is as wrong as an old one: one of the two clocks is.
    said = point.timestamp.seconds + point.timestamp.nanos / 1e9
    return point.HasField("timestamp") and abs(now - said) <= fresh_s


def _number(point: "Datapoint") -> float | None:
    kind = point.value.WhichOneof("typed_value")
    number: float = getattr(point.value, kind) if kind in _NUMBERS else math.nan
    return number if math.isfinite(number) else None


def _text(point: "Datapoint", kind: str | None) -> Signal:
    if kind == "bool":
        return point.value.bool
    return point.value.string if kind == "string" and _is_short(point.value.string) else None


def _is_short(text: str) -> bool:
    return len(text.encode()) <= MAX_SIGNAL_BYTES


class Databroker:
    """One databroker of this vehicle: connects for a question, asks, and closes. Several sources may share it.

    A question that finds nobody is repeated with growing, jittered delays until `timeout_s` has passed; one that is
    refused is not. Its log has a line when it fails for another reason than before.
    """

    def __init__(
        self, settings: DatabrokerSettings, *, clock: Clock | None = None, source: RandomSource | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._source = source or SystemRandom()
        self._contact = Contact(party=f"kuksa databroker {settings.address}")

    @property
    def contact(self) -> Contact:
        """When it last answered, and why the last question failed; nothing about any value."""
        return self._contact

    def now(self) -> float:
        """Return the time by which values are fresh, Unix seconds."""
        return self._clock.now()

    async def ask(self, paths: Sequence[str]) -> "tuple[Datapoint, ...]":
        """Return the present data point of each path, in order.

        Raises:
            SignalUnavailable: it did not answer in time, refused, or answered something else; `contact` says why.
        """
        import grpc.aio  # Only where a vehicle has a databroker.

        trouble = "no answer in time"
        try:
            async with asyncio.timeout(self._settings.timeout_s), self._channel() as channel:
                backoff = Backoff(_RETRY, self._source)
                while True:
                    try:
                        points = _points(await self._get_values(channel, paths), len(paths))
                    except grpc.aio.AioRpcError as error:
                        trouble = _refusal(error, paths)
                        if error.code().name not in _WORTH_ANOTHER_TRY:
                            break
                        await asyncio.sleep(backoff.next_delay())
                    else:
                        self._note()
                        return points
        except (UsageError, ValueError) as error:
            trouble = str(error)
        except TimeoutError:
            pass
        self._note(trouble)
        raise SignalUnavailable from None

    async def _get_values(self, channel: "grpc.aio.Channel", paths: Sequence[str]) -> "GetValuesResponse":
        from fleetcount_protocol.v1.kuksa_pb2 import GetValuesRequest, GetValuesResponse, SignalID

        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_GET_VALUES)
        query = GetValuesRequest(signal_ids=[SignalID(path=path) for path in paths])
        answer = await method(query.SerializeToString(), metadata=self._metadata())
        try:
            return GetValuesResponse.FromString(answer)
        except Exception:  # The library's own error; it may quote what it could not read.
            raise ValueError("the answer is no GetValuesResponse of kuksa.val.v2") from None

    def _channel(self) -> "grpc.aio.Channel":
        import grpc.aio
        from fleetcount_transport.channels import open_channel  # With the library of gRPC.

        settings = self._settings
        authority = None if settings.ca_file is None else read_public_file(settings.ca_file)
        return open_channel(
            settings.address,
            None if authority is None else grpc.ssl_channel_credentials(authority),
            name=settings.server_name,
            options=_OPTIONS,
            plaintext_anywhere=settings.insecure,
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        file = self._settings.token_file
        if file is None:
            return ()
        token = read_secret(file).strip()
        if not _TOKEN.fullmatch(token):
            raise UsageError(f"{file} holds no token: letters, digits and ._~+/=- in one line")
        return (("authorization", f"Bearer {token.decode()}"),)

    def _note(self, trouble: str = "") -> None:
        before = self._contact
        heard = before.last_heard if trouble else self.now()
        self._contact = Contact(party=before.party, last_heard=heard, trouble=trouble)
        if trouble and trouble != before.trouble:
            _LOG.warning("%s: %s", before.party, trouble)


def _points(answer: "GetValuesResponse", asked: int) -> "tuple[Datapoint, ...]":
    if len(answer.data_points) != asked:
        raise ValueError(f"{len(answer.data_points)} data points do not answer {asked} paths")
    return tuple(answer.data_points)


def _refusal(error: "grpc.aio.AioRpcError", paths: Sequence[str]) -> str:
    """Return why a call failed; what the peer says about it is left out."""
    return f"it does not know {' or '.join(paths)}" if error.code().name == "NOT_FOUND" else call_reason(error)


class KuksaSource:
    """A signal of a databroker, as a source of a device."""

    __slots__ = ("_databroker", "_signal")

    def __init__(self, databroker: Databroker, signal: VehicleSignal) -> None:
        self._databroker = databroker
        self._signal = signal

    @property
    def contact(self) -> Contact:
        """How the databroker is, for `Device.status`."""
        return self._databroker.contact

    def misplaced(self, domain: ValueDomain) -> str:
        """Return why its positions are no places of a domain's frame, "" if they may be (`signals.misplaced`)."""
        return self._signal.misplaced(domain)

    async def __call__(self) -> Reading:
        """Return what the vehicle says now, or None; raises SignalUnavailable if the databroker says nothing."""
        points = await self._databroker.ask(self._signal.paths)
        return self._signal.reading_of(points, self._databroker.now())
