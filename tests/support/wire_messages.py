"""One domain value or more for every message of the wire, with its codec: what codec tests and wire vectors go over."""

from typing import Any

from fleetcount_protocol.channel.session import make_receipt
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallQuestion,
    NoisedShare,
    OpenQuery,
    QuestionAnswer,
    QuestionList,
    QuestionOffer,
    QuestionQuery,
    RecordProposal,
    RecordSignature,
    Refusal,
    ReleaseAnswer,
    ReleaseQuery,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
    SetAgreed,
    SetDiffers,
    WindowState,
    WindowStatus,
)
from fleetcount_protocol.question.key_list import sign_key_list
from fleetcount_protocol.question.orders import OrderAction, sign_order
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.wire import device as codec
from fleetcount_protocol.wire import peer
from fleetcount_protocol.wire import question as question_codec
from fleetcount_protocol.wire.codec import WireMessage
from fleetcount_protocol.wire.device_columns import UPLOAD, UPLOAD_ANSWER, InstalmentReplyColumns, Upload, UploadAnswer
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage, DeviceMessage

from tests.support.protocol_samples import (
    instalment,
    seed_bytes,
    session_secret,
    signing_key,
)
from tests.support.question_samples import SEED, key_list, one_round_question, order, sign_everywhere

WINDOW = WindowId(seed_bytes("window"))
SET = Digest(seed_bytes("set"))
IDS = tuple(ReportId(seed_bytes(f"report {number}", 16)) for number in range(3))
ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")
SIGNATURES = (seed_bytes("signature 0", 64), seed_bytes("signature 1", 64))


def session_request() -> SessionRequest:
    """Return a request whose seal, certificate and signature are made up."""
    return SessionRequest(
        aggregator_id=ALPHA,
        key_id=3,
        sealed_secret=seed_bytes("sealed", 80),
        ephemeral_key=seed_bytes("ephemeral key"),
        credential=b"\x01" + seed_bytes("certificate", 300),
        expiry=1_800_086_400,
        signature=seed_bytes("signature", 71),
    )


def refusal() -> Refusal:
    """Return a refusal of the sample instalment."""
    sent = instalment()
    return Refusal(
        window_id=sent.window_id,
        report_id=sent.report_id,
        round=sent.round,
        session_id=sent.session_id,
        reason=RejectReason.TOO_LATE,
    )


def commitment(name: AggregatorId) -> Commitment:
    """Return a made-up commitment."""
    made = Digest(seed_bytes(f"commitment {name}"))
    return Commitment(window_id=WINDOW, aggregator_id=name, set_digest=SET, commitment=made)


def share(name: AggregatorId) -> NoisedShare:
    """Return a made-up noised share of three elements."""
    vector = b"".join((1000 + place).to_bytes(8, "little") for place in range(3))
    return NoisedShare(
        window_id=WINDOW, aggregator_id=name, set_digest=SET, vector=vector, blind=seed_bytes(f"blind {name}")
    )


def device_messages() -> dict[str, tuple[WireMessage[Any, Any], Any]]:
    """Return name -> (codec, value) for device.proto."""
    accepted = SessionAccepted(
        session_id=SessionId(seed_bytes("session id", 16)),
        expiry=1_800_086_400,
        ephemeral_key=seed_bytes("ephemeral key"),
        confirmation=seed_bytes("confirmation"),
    )
    refused = SessionRefused(session_id=accepted.session_id, reason=RejectReason.UNKNOWN_KEY)
    receipt = make_receipt(session_secret(), instalment())
    first = instalment(round=1, public_share=b"")
    both = InstalmentReplyColumns(
        window_id=receipt.window_id,
        round=receipt.round,
        report_ids=2 * receipt.report_id,
        session_ids=2 * receipt.session_id,
        reasons=bytes((RejectReason.BUSY.value, 0)),
        digests=receipt.digest,
        macs=receipt.mac,
    )
    released = ReleaseAnswer(state=WindowState.RELEASED, record=seed_bytes("record", 500), signatures=SIGNATURES)
    return {
        "session_request": (codec.SESSION_REQUEST, session_request()),
        "session_accepted": (codec.SESSION_REPLY, accepted),
        "session_refused": (codec.SESSION_REPLY, refused),
        "upload": (UPLOAD, Upload.of(ALPHA, [instalment()])),
        "upload_round_one": (UPLOAD, Upload.of(ALPHA, [first])),
        "upload_of_three_runs": (UPLOAD, Upload.of(ALPHA, [first, first, instalment(), instalment(round=0)])),
        "upload_answer": (UPLOAD_ANSWER, UploadAnswer.of([receipt])),
        "upload_answer_refused": (UPLOAD_ANSWER, UploadAnswer.of([refusal()])),
        "upload_answer_of_both": (UPLOAD_ANSWER, UploadAnswer(runs=(both,))),
        "device_message_of_sessions": (DEVICE_MESSAGE, DeviceMessage(requests=(session_request(),))),
        "device_message_of_an_upload": (DEVICE_MESSAGE, DeviceMessage(upload=Upload.of(ALPHA, [first, instalment()]))),
        "aggregator_message_of_sessions": (AGGREGATOR_MESSAGE, AggregatorMessage(replies=(accepted, refused))),
        "aggregator_message_of_an_upload": (
            AGGREGATOR_MESSAGE,
            AggregatorMessage(upload=UploadAnswer(runs=(both,))),
        ),
        "release_query": (codec.RELEASE_QUERY, ReleaseQuery(aggregator_id=ALPHA, window_id=WINDOW)),
        "release_answer_collecting": (codec.RELEASE_ANSWER, ReleaseAnswer(state=WindowState.COLLECTING)),
        "release_answer_aborted": (
            codec.RELEASE_ANSWER,
            ReleaseAnswer(state=WindowState.ABORTED, abort_reason="too_few_reports"),
        ),
        "release_answer_released": (codec.RELEASE_ANSWER, released),
    }


def peer_messages() -> dict[str, tuple[WireMessage[Any, Any], Any]]:
    """Return name -> (codec, value) for peer.proto."""
    return {**_window_messages(), **_batch_messages(), **_opening_messages()}


def _window_messages() -> dict[str, tuple[WireMessage[Any, Any], Any]]:
    status = WindowStatus(
        state=WindowState.RELEASING,
        ledger_rows=7,
        set_digest=SET,
        rejections=((RejectReason.TOO_LATE, 3), (RejectReason.INVALID_PROOF, 1)),
    )
    return {
        "deliver_answer": (peer.DELIVER_ANSWER, WindowState.RELEASED),
        "abort_answer": (peer.ABORT_ANSWER, WindowState.ABORTED),
        "abort_window": (peer.ABORT_WINDOW, AbortWindow(window_id=WINDOW, reason="peer_unreachable")),
        "status_query": (peer.STATUS_QUERY, WINDOW),
        "shared_query": (peer.SHARED_QUERY, QuestionId(WINDOW)),
        "shared_query_first": (peer.SHARED_QUERY, None),
        "shared_ids": (peer.SHARED_IDS, SharedIds(question_ids=(QuestionId(WINDOW),), more=True)),
        "shared_question_query": (peer.SHARED_QUESTION_QUERY, QuestionId(WINDOW)),
        "status": (peer.STATUS, status),
        "status_aborted": (
            peer.STATUS,
            WindowStatus(state=WindowState.ABORTED, ledger_rows=0, abort_reason="too_few_reports"),
        ),
    }


def _batch_messages() -> dict[str, tuple[WireMessage[Any, Any], Any]]:
    digest, verifier = Digest(seed_bytes("share digest")), seed_bytes("verifier", 200)
    ids, pair = b"".join(IDS), b"".join(IDS[:2])
    reasons = bytes((0, RejectReason.MISSING_AT_PEER.value, RejectReason.INVALID_PROOF.value))
    proposal = BatchProposal(
        window_id=WINDOW, batch=5, report_ids=ids, share_digests=digest * 3, verifier_shares=verifier * 3
    )
    reply = BatchReply(window_id=WINDOW, batch=5, report_ids=ids, reasons=reasons, verifier_shares=verifier)
    finish = FinishBatch(window_id=WINDOW, batch=5, report_ids=pair, messages=seed_bytes("message") * 2)
    empty = FinishBatch(window_id=WINDOW, batch=5, report_ids=b"", messages=b"")
    return {
        "batch_proposal": (peer.BATCH_PROPOSAL, proposal),
        "batch_reply": (peer.BATCH_REPLY, reply),
        "finish_batch": (peer.FINISH_BATCH, finish),
        "finish_batch_empty": (peer.FINISH_BATCH, empty),
        "batch_decision": (peer.BATCH_DECISION, BatchDecision(window_id=WINDOW, batch=5, accepted=pair)),
        "batch_decision_zero": (peer.BATCH_DECISION, BatchDecision(window_id=WINDOW, batch=0, accepted=b"")),
        "set_agreed": (peer.SET_ANSWER, SetAgreed(window_id=WINDOW, set_digest=SET)),
        "set_differs": (peer.SET_ANSWER, SetDiffers(window_id=WINDOW, leaves=bytes([0x80, *[0] * 30, 1]))),
    }


def _opening_messages() -> dict[str, tuple[WireMessage[Any, Any], Any]]:
    both = (commitment(ALPHA), commitment(BETA))
    record = seed_bytes("record", 500)
    proposal = RecordProposal(window_id=WINDOW, shares=(share(ALPHA), share(BETA)), record=record)
    signature = RecordSignature(window_id=WINDOW, aggregator_id=BETA, signature=SIGNATURES[1])
    finished = FinishedRecord(window_id=WINDOW, record=record, signatures=SIGNATURES)
    return {
        "commit_query": (peer.COMMIT_QUERY, CommitQuery(window_id=WINDOW, set_digest=SET)),
        "commitment": (peer.COMMITMENT, commitment(BETA)),
        "open_query": (peer.OPEN_QUERY, OpenQuery(window_id=WINDOW, set_digest=SET, commitments=both)),
        "noised_share": (peer.NOISED_SHARE, share(BETA)),
        "record_proposal": (peer.RECORD_PROPOSAL, proposal),
        "record_signature": (peer.RECORD_SIGNATURE, signature),
        "finished_record": (peer.FINISHED_RECORD, finished),
    }


def question_messages() -> dict[str, tuple[WireMessage[Any, Any], Any]]:
    """Return name -> (codec, value) for what is said about question."""
    question = one_round_question(Mode.RESPONSE)
    signed = sign_everywhere(question)
    orders = (
        sign_order(order(question, 1, OrderAction.PAUSE, 2), signing_key(0)),
        sign_order(order(question, 2, OrderAction.RESUME, 4), signing_key(0)),
        sign_order(order(question, 1, OrderAction.STOP, 6, position=1), signing_key(1)),
    )
    lists = tuple(sign_key_list(key_list(position), signing_key(position)) for position in range(2))
    offer = QuestionOffer(signed=signed, key_lists=lists, orders=orders)
    bare = QuestionOffer(signed=signed, key_lists=lists[1:], orders=())
    answer = QuestionAnswer(question_id=question.question_id, key_list=lists[1])
    install = InstallQuestion(signed=signed, seed=SEED, orders=orders[:1])
    return {
        "question_offer": (question_codec.QUESTION_OFFER, offer),
        "question_offer_bare": (question_codec.QUESTION_OFFER, bare),
        "question_list": (question_codec.QUESTION_LIST, QuestionList(offers=(offer, bare))),
        "question_list_empty": (question_codec.QUESTION_LIST, QuestionList(offers=())),
        "question_list_more": (question_codec.QUESTION_LIST, QuestionList(offers=(bare,), more=True)),
        "question_list_unchanged": (question_codec.QUESTION_LIST, QuestionList(offers=(), unchanged=True)),
        "question_list_query": (
            question_codec.QUESTION_LIST_QUERY,
            QuestionQuery(aggregator_id=ALPHA, deployment="bologna"),
        ),
        "question_list_query_after": (
            question_codec.QUESTION_LIST_QUERY,
            QuestionQuery(aggregator_id=ALPHA, deployment="bologna", after=question.question_id),
        ),
        "question_list_query_held": (
            question_codec.QUESTION_LIST_QUERY,
            QuestionQuery(aggregator_id=ALPHA, deployment="bologna", held=bytes(range(32))),
        ),
        "install_question": (peer.INSTALL_QUESTION, install),
        "install_question_answer": (peer.INSTALL_QUESTION_ANSWER, answer),
        "deliver_order": (peer.DELIVER_ORDER, orders[2]),
        "deliver_order_answer": (peer.DELIVER_ORDER_ANSWER, answer),
    }


MESSAGES = {**device_messages(), **peer_messages(), **question_messages()}
