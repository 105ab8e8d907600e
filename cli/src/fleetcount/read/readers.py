"""Asking aggregators how far a question is and for its signed results, as a device, an analyst or an operator may.

Opens connections and returns decoded answers; must not check a record (`release_report` does).
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fleetcount_protocol.endpoint import is_loopback, split_endpoint
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import ReleaseAnswer, WindowStatus
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window
from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.lost_reasons import call_reason
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.trust_files import succeeded

from fleetcount.command.exits import CannotReachError
from fleetcount.keys.descriptors import toml_text

if TYPE_CHECKING:  # gRPC takes 150 ms to load; only a command that asks somebody pays for it.
    import grpc
    from fleetcount_aggregator.greetings import Skew
    from fleetcount_protocol.question.orders import QuestionOrder
    from fleetcount_protocol.question.question import Question

TIMEOUT_S: Final = 15.0
_GET_RELEASE: Final = "/fleetcount_protocol.v1.DeviceService/GetRelease"
_LIST_QUESTION: Final = "/fleetcount_protocol.v1.DeviceService/ListQuestions"
_READER_KEYS: Final = ("deployment", "certificate_file", "key_file", "aggregator_ca_file")
_PARTY_KEYS: Final = ("id", "operator", "signing_public_key", "succession_files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who asks: the aggregators it trusts and the files of its TLS identity; None for plaintext on loopback."""

    config: Path
    trusted: Mapping[AggregatorId, TrustedAggregator]
    tls_files: tuple[Path, Path, Path] | None = field(repr=False)
    """Authority of the aggregators, own certificate, own key."""

    def credentials(self) -> "grpc.ChannelCredentials | None":
        """Return the channel credentials.

        Raises:
            UsageError: a file cannot be used.
        """
        return None if self.tls_files is None else TlsFiles.read(*self.tls_files).to_servers()


def read_reader(path: Path) -> Reader:
    """Return the reader of a configuration: an analyst's, a device's or an aggregator's.

    Raises:
        UsageError: the file is not one of the three kinds, or cannot be used.
    """
    content = read_toml(path)
    if content.has("reader"):
        return _analyst(path)
    if content.has("device"):
        return _device(path)
    if content.has("aggregator"):
        return _aggregator(path)
    raise UsageError(f"{path} has none of [reader], [device], [aggregator]; it is no configuration of fleetcount")


def reader_toml(deployment: str, aggregators: tuple[Aggregator, ...]) -> str:
    """Return an analyst's configuration file, its key and certificate beside it."""
    import base64

    rows = [
        "# One analyst of a test deployment, by `fleetcount keys init`. Every path is relative to this file.",
        "",
        "[reader]",
        f"deployment = {toml_text(deployment)}",
        'certificate_file = "analyst.crt"',
        'key_file = "analyst.key"',
        'aggregator_ca_file = "../ca/aggregators.crt"',
    ]
    for one in aggregators:
        rows += [
            "",
            "[[aggregators]]",
            f"id = {toml_text(one.aggregator_id)}",
            f"operator = {toml_text(one.operator)}",
            f'signing_public_key = "{base64.b64encode(one.signing_public_key).decode()}"',
        ]
    return "\n".join(rows) + "\n"


def _analyst(path: Path) -> Reader:
    root = read_toml(path, ("reader", "aggregators"))
    table = root.section("reader", _READER_KEYS)
    table.deployment("deployment")
    rows = root.sections("aggregators", _PARTY_KEYS, least=1, most=64)
    trusted = {one.aggregator_id: one for one in map(_party, rows)}
    files = (
        table.existing_file("aggregator_ca_file"),
        table.existing_file("certificate_file"),
        table.private_file("key_file"),
    )
    return Reader(config=path, trusted=trusted, tls_files=files)


def read_trusted(path: Path) -> list[TrustedAggregator]:
    """Return the `[[aggregators]]` of an analyst's configuration, or of a file that has nothing else.

    What only connections need (certificate, key) is not looked at.

    Raises:
        UsageError: the file cannot be used, or names an aggregator twice.
    """
    rows = read_toml(path, ("reader", "aggregators")).sections("aggregators", _PARTY_KEYS, least=1, most=64)
    parties = list(map(_party, rows))
    if len({one.aggregator_id for one in parties}) < len(parties):
        raise UsageError(f"{path} names an aggregator twice, allowed: each once")
    return parties


def _party(table: Table) -> TrustedAggregator:
    party = TrustedAggregator(
        aggregator_id=table.aggregator_id("id"),
        operator=table.text("operator", r"[^\0-\x1f]{1,200}", "1 to 200 characters"),
        signing_public_key=table.base64_bytes("signing_public_key", 32),
    )
    return succeeded(party, table.file_names("succession_files"))


def _device(path: Path) -> Reader:
    from fleetcount_client.assembly import trusted_by
    from fleetcount_client.config import load_settings

    settings = load_settings(path)
    trusted = {one.aggregator_id: one for one in trusted_by(settings)}
    if settings.grpc is None:
        raise UsageError(f"{path}: device.transport is 'mqtt'; a release is read over gRPC")
    authority = settings.grpc.ca_file
    files = None if authority is None else (authority, settings.certificate_file, settings.key_file)
    return Reader(config=path, trusted=trusted, tls_files=files)


def _aggregator(path: Path) -> Reader:
    from fleetcount.question.files import operator_of

    operator = operator_of(path)
    tls = operator.config.tls
    files = (tls.aggregator_ca_file, tls.certificate_file, tls.key_file)
    return Reader(config=path, trusted=operator.trusted, tls_files=None if operator.config.grpc.insecure else files)


# Releases, from the device port.


def _refused_hint(reader: Reader) -> str:
    if read_toml(reader.config).has("aggregator"):
        return "; aggregators answer readers certified by the device authority: try the analyst's or a device's file"
    return ""


class WindowReader:
    """Asks the aggregators of a question for the releases of its windows, over one connection to each.

    Use it as an asynchronous context.
    """

    def __init__(self, reader: Reader, aggregators: Iterable[Aggregator]) -> None:
        """Connect to nothing yet; aggregators without a gRPC endpoint are not asked."""
        self._reader = reader
        self._aggregators = [one for one in aggregators if one.grpc_endpoint]
        self._channels: list[Any] = []

    async def __aenter__(self) -> Self:
        """Open the channels.

        Raises:
            UsageError: a file of the reader's identity cannot be used, or no TLS and an endpoint elsewhere.
        """
        credentials = self._reader.credentials()
        for one in self._aggregators:
            self._channels.append(_channel(one.aggregator_id, one.grpc_endpoint, credentials))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        for channel in self._channels:
            await channel.close()

    async def ask(self, window_id: WindowId) -> ReleaseAnswer | None:
        """Return the first answer with a record, else the first at all; None if those that answer have no such window.

        Raises:
            CannotReachError: none of them answered; says why for the last.
        """
        import grpc
        import grpc.aio
        from fleetcount_protocol.messages import ReleaseQuery
        from fleetcount_protocol.wire.device import RELEASE_ANSWER, RELEASE_QUERY

        best, reached, why = None, False, "no aggregator has a gRPC endpoint"
        for aggregator, channel in zip(self._aggregators, self._channels, strict=True):
            try:
                query = RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=aggregator.aggregator_id, window_id=window_id))
                data = await channel.unary_unary(_GET_RELEASE)(query, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                reached = reached or error.code() is grpc.StatusCode.NOT_FOUND
                why = f"{aggregator.grpc_endpoint}: {call_reason(error)}"
                continue
            answer = RELEASE_ANSWER.decode(data)
            if answer.record:
                return answer
            best, reached = best or answer, True
        if not reached:
            raise CannotReachError(f"{why}{_refused_hint(self._reader)}")
        return best

    async def orders(self, question: "Question") -> "tuple[QuestionOrder, ...]":
        """Return every order about a question that those who answer know, each signed by who may give it.

        Raises:
            CannotReachError: none of them answered; says why for the last.
            QuestionError, SignatureError: an order that its aggregator did not sign, or may not give.
        """
        import grpc.aio
        from fleetcount_protocol.ids import QuestionId
        from fleetcount_protocol.messages import QuestionQuery
        from fleetcount_protocol.question.orders import verify_orders
        from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY

        before = max(0, int.from_bytes(question.question_id) - 1)  # A list begins above what was listed last.
        after = QuestionId(before.to_bytes(QuestionId.SIZE))
        found: set[QuestionOrder] = set()
        reached, why = False, "no aggregator has a gRPC endpoint"
        for aggregator, channel in zip(self._aggregators, self._channels, strict=True):
            try:
                asked = QUESTION_LIST_QUERY.encode(
                    QuestionQuery(
                        aggregator_id=aggregator.aggregator_id, deployment=question.deployment, after=after, over=True
                    )
                )
                data = await channel.unary_unary(_LIST_QUESTION)(asked, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                why = f"{aggregator.grpc_endpoint}: {call_reason(error)}"
                continue
            reached = True
            for offer in QUESTION_LIST.decode(data).offers:
                if offer.signed.question.question_id == question.question_id:
                    question = verify_orders(offer.orders, question, self._reader.trusted)
                    found |= {one.order for one in offer.orders}
        if not reached:
            raise CannotReachError(f"{why}{_refused_hint(self._reader)}")
        return tuple(found)


def _channel(name: str, endpoint: str, credentials: "grpc.ChannelCredentials | None") -> Any:
    """Return a channel whose far end must be certified as this aggregator.

    Raises:
        UsageError: no credentials, and the endpoint is not on this machine.
    """
    import grpc.aio
    from fleetcount_protocol.limits import MAX_RECORD_BYTES

    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_RECORD_BYTES + 65_536),
        ("grpc.enable_retries", 0),
    ]
    if credentials is not None:
        options.append(("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(endpoint, credentials, options=options)
    if not is_loopback(split_endpoint(endpoint)[0]):
        raise UsageError(f"{endpoint} is not on this machine; without TLS only loopback is asked")
    return grpc.aio.insecure_channel(endpoint, options=options)


# Statuses, from the peer port: for operators.


async def ask_statuses(config_path: Path, window: Window) -> dict[AggregatorId, WindowStatus | str]:
    """Return every aggregator's status of a window, or why it gave none, as this aggregator's operator.

    Raises:
        UsageError: the configuration cannot be used, or the window names an aggregator it does not know.
    """
    from fleetcount.question.files import operator_of

    operator = operator_of(config_path)
    own = operator.aggregator_id
    endpoints = {AggregatorId(peer.id): peer.endpoint for peer in operator.config.peers}
    endpoints[own] = operator.config.grpc.peer_listen
    unknown = [str(one.aggregator_id) for one in window.aggregators if one.aggregator_id not in endpoints]
    if unknown:
        raise UsageError(f"{config_path} does not know the aggregator {unknown[0]!r} of the window")
    credentials = _aggregator(config_path).credentials()
    names = [one.aggregator_id for one in window.aggregators]
    answers = await asyncio.gather(
        *(_status(own, name, endpoints[name], credentials, window.window_id) for name in names)
    )
    return dict(zip(names, answers, strict=True))


async def _status(
    own: AggregatorId,
    name: AggregatorId,
    endpoint: str,
    credentials: "grpc.ChannelCredentials | None",
    window_id: WindowId,
    clock: "_Clock | None" = None,
) -> WindowStatus | str:
    from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
    from fleetcount_aggregator.transport.grpc_peers import GrpcPeer

    peer = GrpcPeer(name, endpoint, caller=own, timeout_s=TIMEOUT_S, credentials=credentials, greetings=clock)
    try:
        return await peer.status(window_id)
    except PeerUnreachableError as error:
        return f"cannot reach {endpoint} ({error})"
    except (PeerRefusalError, FleetcountError) as error:
        return f"refuses: {error}"
    finally:
        await peer.close()


class _Clock:
    """Hears a peer's time; the operator's command is no start of the aggregator, and says nothing of itself."""

    def __init__(self) -> None:
        self.skew: Skew | None = None

    def now(self) -> float:
        return time.time()

    def say(self, to: AggregatorId) -> bytes:
        del to
        return b""

    async def hear_answer(self, peer: AggregatorId, said: bytes, asked: float) -> None:
        del peer
        from fleetcount_aggregator.greetings import Skew
        from fleetcount_protocol.channel.greetings import decode_greeting

        self.skew = Skew.of(decode_greeting(said).time_ms / 1000, asked, self.now()) if said else None


async def ask_peer(config_path: Path, name: str, endpoint: str) -> "tuple[str, Skew | None]":
    """Return "" when the peer answers an aggregator of this configuration, else why it does not; and its clock.

    It is asked for a window that does not exist: a refusal by name is the right answer.
    """
    from fleetcount.question.files import operator_of

    own, clock = operator_of(config_path).aggregator_id, _Clock()
    credentials = _aggregator(config_path).credentials()
    answer = await _status(own, AggregatorId(name), endpoint, credentials, WindowId(bytes(32)), clock)
    return answer if isinstance(answer, str) and "unknown_window" not in answer else "", clock.skew
