"""Every decoder of untrusted bytes, by name: the vectors of refusals and the fuzzer run them.

Each takes bytes and returns a value or raises a `PeerError`; any other exception is a fault of the decoder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from fleetcount_protocol.channel.certificates import certificate_der, parse_certificate
from fleetcount_protocol.channel.deny_list import SignedDenyList, decode_signed_deny_list
from fleetcount_protocol.channel.greetings import Epoch, Greeting, decode_epoch, decode_greeting
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.limits import SET_LEAVES
from fleetcount_protocol.messages import SealSet
from fleetcount_protocol.question.key_list import decode_key_list, decode_signed_key_list, encode_signed_key_list
from fleetcount_protocol.question.orders import decode_order, decode_signed_order, encode_signed_order
from fleetcount_protocol.question.question import (
    decode_question,
    decode_signed_question,
    encode_signed_question,
)
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_protocol.v1.peer_pb2 import SealSetRequest
from fleetcount_protocol.vdaf.prio3 import Prio3, VerifyState, prio3_two_round
from fleetcount_protocol.window.succession import decode_signed_succession, encode_signed_succession
from fleetcount_protocol.window.window import decode_window
from fleetcount_protocol.wire import device, device_columns, device_stream, peer, question
from fleetcount_protocol.wire.codec import WireMessage
from fleetcount_protocol.wire.peer import join_seal_set
from fleetcount_protocol.wire.topics import parse_topic
from google.protobuf.message import DecodeError as ProtobufError

_MODULES: Final = (device, device_columns, device_stream, peer, question)


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder; where the form is canonical, `again` encodes a decoded value and must return the same bytes."""

    name: str
    decode: Callable[[bytes], Any]
    again: Callable[[Any], bytes] | None = None


@cache
def decoders() -> Mapping[str, Decoder]:
    """Return every decoder by name: of messages of the wire, of signed and stored layouts, of topics, of shares."""
    every = [*_messages(), *_layouts(), *_shares()]
    return {one.name: one for one in every}


def _messages() -> list[Decoder]:
    """Return the codec of every message, by the name of its constant."""
    return [
        Decoder(name.lower(), value.decode, value.encode)
        for module in _MODULES
        for name, value in vars(module).items()
        if isinstance(value, WireMessage)
    ]


def _layouts() -> list[Decoder]:
    return [
        Decoder("certificate", parse_certificate, certificate_der),
        Decoder("deny_list_file", decode_signed_deny_list, SignedDenyList.encode),
        Decoder("epoch", decode_epoch, Epoch.encode),
        Decoder("greeting", decode_greeting, Greeting.encode),
        Decoder("key_list", decode_key_list, lambda value: value.canonical),
        Decoder("key_list_file", decode_signed_key_list, encode_signed_key_list),
        Decoder("order", decode_order, lambda value: value.canonical),
        Decoder("order_file", decode_signed_order, encode_signed_order),
        Decoder("record", decode_record, lambda value: value.canonical),
        Decoder("record_json", lambda data: record_from_json(_text(data))),
        Decoder("seal_set_chunk", lambda data: _read_chunk(data, behind=True)),
        Decoder("seal_set_head", _read_chunk),
        Decoder("question", decode_question, lambda value: value.canonical),
        Decoder("question_file", decode_signed_question, encode_signed_question),
        Decoder("succession_file", decode_signed_succession, encode_signed_succession),
        Decoder("window", decode_window, lambda value: value.canonical),
        Decoder("topic", lambda data: parse_topic(_text(data))),
    ]


def _read_chunk(data: bytes, *, behind: bool = False) -> SealSet:
    """Return the set of this one chunk, or of a first chunk and this one `behind` it.

    In an aggregator the RPC library parses a chunk before `join_seal_set` gets it.

    Raises:
        DecodeError: the bytes are not a protobuf message.
        PeerError: `join_seal_set` refuses the chunks.
    """
    try:
        chunk = SealSetRequest.FromString(data)
    except ProtobufError as error:
        raise DecodeError("a chunk of a set is no protobuf message") from error
    following = max(1, len(chunk.accepted) // ReportId.SIZE)
    first = SealSetRequest(window_id=chunk.window_id, leaf_digests=bytes(SET_LEAVES * Digest.SIZE), following=following)
    return join_seal_set([first, chunk] if behind else [chunk])


def _shares() -> list[Decoder]:
    """Return the decoders of the proof layer, for two rounds over two values, two aggregators."""
    prio3: Prio3 = prio3_two_round(3, 2)
    key, ctx, nonce = bytes(32), b"", bytes(prio3.nonce_size)
    no_share = bytes(prio3.public_share_size)
    return [
        Decoder("input_share", lambda data: prio3.verify_init(key, ctx, 0, nonce, no_share, data)),
        Decoder("input_share_helper", lambda data: prio3.verify_init(key, ctx, 1, nonce, no_share, data)),
        Decoder("output_share", prio3.decode_output_share, prio3.encode_output_share),
        Decoder("verifier_shares", lambda data: prio3.combine_verifier_shares(ctx, [data, data])),
        Decoder("verify_state", lambda data: VerifyState.decode(prio3, data), VerifyState.encode),
    ]


def _text(data: bytes) -> str:
    """Return text as a transport decodes it: UTF-8, with U+FFFD for every other byte."""
    return data.decode("utf-8", "replace")
