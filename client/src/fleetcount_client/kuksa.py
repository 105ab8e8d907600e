"""Signals of a KUKSA databroker (gRPC, kuksa.val.v2): what the vehicle says now, in the units a window asks in.

A value is asked for when a question needs it and at no other time (decision 47). Never keeps, logs or shows a
value; never holds the event loop; never says more about the token than where it lies.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.clock import Clock, SystemClock
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import is_loopback, split_endpoint
from fleetcount_protocol.window.domain import SquareGrid, ValueDomain
from fleetcount_protocol.window.signal import Kind, Number, Signal, Single, converted, exact
from fleetcount_transport.key_files import check_foreign_authorities, read_public_file, read_secret
from fleetcount_transport.lost_reasons import call_reason
from fleetcount_transport.settings import UnfitKeyError, insecure, setting, settings
from fleetcount_transport.toml_table import Table

from fleetcount_client.contact import Contact
from fleetcount_client.private_places import UtmZone
from fleetcount_client.signals import (
    MAX_SIGNAL_BYTES,
    Description,
    KnowingSource,
    Reading,
    SignalFault,
    SignalUnavailable,
)
from fleetcount_client.timer import Backoff, Retry

if TYPE_CHECKING:  # The libraries of gRPC and its messages are loaded with the first question.
    import grpc.aio
    from fleetcount_protocol.v1.kuksa_pb2 import Datapoint, Metadata, Value

_LOG: Final = logging.getLogger(__name__)
_GET_VALUES: Final = "/kuksa.val.v2.VAL/GetValues"
_LIST_METADATA: Final = "/kuksa.val.v2.VAL/ListMetadata"
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
_ATTRIBUTE: Final = 1
"""EntryType: what does not change while the vehicle drives, so that its time says nothing."""
_USUALLY_FRESH_S: Final = 60.0
_STRING, _BOOLEAN, _STRING_ARRAY = 1, 2, 20
_NUMERIC: Final = range(3, 13)
"""DataType, from int8 to double."""
_WITHOUT_METADATA: Final = frozenset({"NOT_FOUND", "UNIMPLEMENTED", "PERMISSION_DENIED"})
_T = TypeVar("_T")


@settings
class DatabrokerSettings:
    """[kuksa]: where a databroker is, "host:port"; plaintext without `ca_file`, beyond loopback only if `insecure`.

    `server_name` is the name its certificate carries where that is not the host, "" for the host. `token_file` holds a
    JSON Web Token, which is read anew for each question.
    """

    address: str = setting(Table.endpoint)
    ca_file: Path | None = setting(Table.existing_file, default=None)
    server_name: str = setting(Table.text, r"[A-Za-z0-9._-]{1,253}", "a host name", default="")
    token_file: Path | None = setting(Table.private_file, default=None)
    timeout_s: float = setting(Table.seconds, 0.1, 20, default=2.0)
    insecure: bool = setting(insecure, default=False)

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
    """Which leaves of the VSS tree make a reading, and how old a value may be.

    One path is read as it stands. Two paths are longitude and latitude in degrees and become metres of `zone` plus
    `offset_x` and `offset_y`, or without a zone stay degrees. A value whose time differs from the device's by more than
    `fresh_s` seconds (infinity: any), or that has no time, is no value. A databroker leaves the time as it is while a
    value stays; so None is any age for an attribute of the vehicle and 60 s for everything else.
    """

    paths: tuple[str, ...]
    fresh_s: float | None = None
    zone: UtmZone | None = None
    offset_x: Fraction = Fraction(0)
    offset_y: Fraction = Fraction(0)

    def reading_of(self, points: "Sequence[Datapoint]", now: float, fresh_s: float) -> Reading:
        """Return what data points, one a path, mean at `now` (Unix seconds); no value where one has no fresh one.

        Raises:
            SignalFault: a value that is no signal.
        """
        if not all(point.HasField("timestamp") and point.value.WhichOneof("typed_value") for point in points):
            return Reading(why_none="the databroker has no value")
        ages = [now - point.timestamp.seconds - point.timestamp.nanos / 1e9 for point in points]
        age_s = max(ages, key=abs)
        # A value of the future is as wrong as an old one: one of the two clocks is.
        if abs(age_s) > fresh_s:
            return Reading(age_s=age_s, why_none=f"it is not of the last {fresh_s:g} s")
        return Reading(value=self._value(points), age_s=age_s)

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

    def _value(self, points: "Sequence[Datapoint]") -> Signal | frozenset[str]:
        if len(points) == 1:
            return _single(points[0].value)
        longitude, latitude = (_number(point.value) for point in points)
        if exact(longitude) is None or exact(latitude) is None:
            return None
        place: tuple[Number, Number] | None = (longitude, latitude)
        if self.zone is not None:
            place = self.zone.metres(float(longitude), float(latitude))
        return None if place is None else (_moved(place[0], self.offset_x), _moved(place[1], self.offset_y))


def _moved(number: Number, offset: Fraction) -> Number:
    moved = converted(number, Fraction(1), offset) if offset else None
    return number if moved is None else moved


def _number(value: "Value") -> Number:
    kind = value.WhichOneof("typed_value")
    if kind not in _NUMBERS:
        raise SignalFault("a position is two numbers, and one of its paths is something else")
    number: Number = getattr(value, kind)
    return Single(number) if kind == "float" else number


def _single(value: "Value") -> Signal | frozenset[str]:
    kind = value.WhichOneof("typed_value")
    if kind in _NUMBERS:
        number = _number(value)
        return None if exact(number) is None else number
    if kind == "bool":
        return value.bool
    texts = list(value.string_array.values) if kind == "string_array" else [value.string]
    if not all(map(_is_short, texts)):
        raise SignalFault(f"a text has more than {MAX_SIGNAL_BYTES} bytes")
    return texts[0] if kind == "string" else frozenset(texts)


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
        if settings.ca_file is not None:
            check_foreign_authorities(settings.ca_file)  # Now; every connection reads it again.
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
        from fleetcount_protocol.v1.kuksa_pb2 import GetValuesRequest, GetValuesResponse, SignalID

        query = GetValuesRequest(signal_ids=[SignalID(path=path) for path in paths])

        def read(answer: bytes) -> "tuple[Datapoint, ...]":
            points = tuple(GetValuesResponse.FromString(answer).data_points)
            if len(points) != len(paths):
                raise ValueError(f"{len(points)} data points do not answer {len(paths)} paths")
            return points

        return await self._call(_GET_VALUES, query.SerializeToString(), read, paths, {})

    async def describe(self, path: str) -> "Metadata | None":
        """Return what it says of a path, without any value; None where it says nothing.

        Raises:
            SignalUnavailable: it did not answer in time, refused, or answered something else; `contact` says why.
        """
        from fleetcount_protocol.v1.kuksa_pb2 import ListMetadataRequest, ListMetadataResponse

        def read(answer: bytes) -> "Metadata | None":
            said = [one for one in ListMetadataResponse.FromString(answer).metadata if one.path in ("", path)]
            return said[0] if len(said) == 1 else None

        query = ListMetadataRequest(root=path, filter="*")
        nothing = dict.fromkeys(_WITHOUT_METADATA)
        return await self._call(_LIST_METADATA, query.SerializeToString(), read, [path], nothing)

    async def _call(
        self,
        method: str,
        query: bytes,
        read: Callable[[bytes], _T],
        paths: Sequence[str],
        instead: Mapping[str, _T],
    ) -> _T:
        """Return what is read of an answer, or what a status with which the call ends stands for."""
        import grpc.aio  # Only where a vehicle has a databroker.

        trouble, unknown = "no answer in time", False
        try:
            async with asyncio.timeout(self._settings.timeout_s), self._channel() as channel:
                backoff = Backoff(_RETRY, self._source)
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
                while True:
                    try:
                        answer = _understood(read, await call(query, metadata=self._metadata()))
                    except grpc.aio.AioRpcError as error:
                        trouble, unknown = _refusal(error, paths), error.code().name == "NOT_FOUND"
                        if error.code().name in instead:
                            return instead[error.code().name]
                        if error.code().name not in _WORTH_ANOTHER_TRY:
                            break
                        await asyncio.sleep(backoff.next_delay())
                    else:
                        self._note()
                        return answer
        except (UsageError, ValueError) as error:
            trouble = str(error)
        except TimeoutError:
            pass
        self._note(trouble)
        raise (SignalFault if unknown else SignalUnavailable)(f"{self._contact.party}: {trouble}") from None

    def _channel(self) -> "grpc.aio.Channel":
        import grpc
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


def _understood(read: Callable[[bytes], _T], answer: bytes) -> _T:
    try:
        return read(answer)
    except ValueError:
        raise
    except Exception:  # The library's own error; it may quote what it could not read.
        raise ValueError("the answer is no message of kuksa.val.v2") from None


def _refusal(error: "grpc.aio.AioRpcError", paths: Sequence[str]) -> str:
    """Return why a call failed; what the peer says about it is left out."""
    return f"it does not know {' or '.join(paths)}" if error.code().name == "NOT_FOUND" else call_reason(error)


class KuksaSource(KnowingSource):
    """A signal of a databroker, as a source of a device. What the databroker says of its paths is asked for once."""

    __slots__ = ("_databroker", "_known", "_signal")

    def __init__(self, databroker: Databroker, signal: VehicleSignal) -> None:
        self._databroker = databroker
        self._signal = signal
        self._known: dict[str, Metadata] = {}

    @property
    def contact(self) -> Contact:
        """How the databroker is, for `Device.status`."""
        return self._databroker.contact

    def misplaced(self, domain: ValueDomain) -> str:
        """Return why its positions are no places of a domain's frame, "" if they may be (`signals.unfit`)."""
        return self._signal.misplaced(domain)

    async def learn(self) -> None:
        """Ask the databroker for type, unit, range and kind of entry of its paths; nothing that it knows already."""
        with suppress(SignalUnavailable):  # `contact` says why, and the next question asks again.
            await self._learn()

    async def _learn(self) -> None:
        for path in self._signal.paths:
            if path not in self._known and (said := await self._databroker.describe(path)) is not None:
                self._known[path] = said

    def described(self) -> Description:
        """Return what the databroker says of its readings."""
        first, *others = self._signal.paths
        if others:
            return Description(kind=Kind.POSITION)
        said = self._known.get(first)
        if said is None:
            return Description()
        low, high = (exact(_limit(one)) for one in (said.min, said.max))
        return Description(kind=_kind(said.data_type), unit=said.unit, low=low, high=high)

    async def __call__(self) -> Reading:
        """Return what the vehicle says now; raises SignalUnavailable if the databroker says nothing."""
        # Without its unit a value could be read as a thousand times itself.
        await self._learn()
        points = await self._databroker.ask(self._signal.paths)
        reading = self._signal.reading_of(points, self._databroker.now(), self._fresh_s())
        return replace(reading, unit=self.described().unit)

    def _fresh_s(self) -> float:
        if self._signal.fresh_s is not None:
            return self._signal.fresh_s
        said = [self._known.get(path) for path in self._signal.paths]
        attribute = all(one is not None and one.entry_type == _ATTRIBUTE for one in said)
        return math.inf if attribute else _USUALLY_FRESH_S


def _kind(data_type: int) -> Kind | None:
    if data_type in _NUMERIC:
        return Kind.NUMBER
    # A list of texts is a set of names, which vector Mangat asks for.
    known = {0: None, _STRING: Kind.TEXT, _STRING_ARRAY: Kind.TEXT, _BOOLEAN: Kind.TRUTH_VALUE}
    return known.get(data_type, Kind.OTHER)


def _limit(value: "Value") -> Number | None:
    return _number(value) if value.WhichOneof("typed_value") in _NUMBERS else None
