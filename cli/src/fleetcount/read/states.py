"""What the aggregators of a question say to the operator of one of them: states of a window, and their clocks.

Asks over the peer port and prints; it must not judge a record.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import grpc
from fleetcount_aggregator.host.moment import Skew
from fleetcount_aggregator.host.reasons import expected_wait
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_protocol.channel.greetings import decode_greeting
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import WindowStatus
from fleetcount_protocol.question.orders import started_question
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.window import Window

from fleetcount.command.base import CannotReachError, CheckFailedError, RefusedByPolicyError, one_line, show
from fleetcount.keys.operator import operator_of
from fleetcount.question.orders import installed_question
from fleetcount.read.readers import read_reader

_UNKNOWN = "unknown_window"
"""What an aggregator says that has not decided about the window yet, or knows nothing of the question."""
_TIMEOUT_S: Final = 15.0


def show_states(config_path: Path, question: Question, index: int | None, now: float, *, as_json: bool) -> None:
    """Print every aggregator's state of a window, None: the last that has opened, and whether set digests are equal.

    Raises:
        UsageError: no such window, a later step of a drill-down, or a configuration that cannot be used.
        CheckFailedError: the set digests differ.
        RefusedByPolicyError: the window was aborted somewhere, or is missing; or the question has no start here yet.
        CannotReachError: an aggregator that does not answer.
    """
    if question.schedule.first is None:
        known = installed_question(question, operator_of(config_path).config)
        question = started_question(question, (one.order for one in known.orders))
    schedule, walk = question.schedule, question.drill_down
    if index is None:
        index = min(schedule.windows - 1, max(0, int(now - schedule.opens(0)) // schedule.every_s))
    if index >= schedule.windows:
        raise UsageError(f"--window is {index}, allowed: 0 to {schedule.windows - 1}")
    if walk is not None and walk.step_of(index):
        raise UsageError(f"window {index} is a later step of a drill-down: its records say what it asked")
    window = window_at(question, index)
    answers = asyncio.run(ask_statuses(config_path, window))
    missing = _why_missing(config_path, question, index) if any(map(_is_unknown, answers.values())) else ""
    lines = [one_line(f"{name:<12} {_text(window, name, answer, missing)}") for name, answer in answers.items()]
    if schedule.windows > 1:
        lines.insert(0, f"window {index}, which opens {utc_text(window.round_one_opens)}")
    rows = [_json(index, str(name), answer, missing) for name, answer in answers.items()]
    show(rows, lines, as_json=as_json)
    _conclude(answers, missing, quiet=as_json)


def _is_unknown(answer: WindowStatus | str) -> bool:
    return isinstance(answer, str) and _UNKNOWN in answer


def _why_missing(config_path: Path, question: Question, index: int) -> str:
    """Return why the operator's own aggregator has decided that there is no such window; "" if it has not."""
    with suppress(FleetcountError):  # A store that cannot be read here takes nothing from what the aggregators say.
        known = installed_question(question, operator_of(config_path).config)
        return next((reason for reason, windows in known.missing.items() if index in windows), "")
    return ""


def _json(index: int, name: str, answer: WindowStatus | str, missing: str) -> dict[str, Any]:
    if isinstance(answer, str):
        why = missing if _is_unknown(answer) else ""
        return {"aggregator": name, "window": index, "error": answer, "missing": why}
    return {
        "aggregator": name,
        "window": index,
        "state": answer.state.value,
        "abort_reason": answer.abort_reason,
        "set_digest": None if answer.set_digest is None else answer.set_digest.hex(),
        "refused": {reason.label: count for reason, count in answer.rejections},
    }


def _text(window: Window, name: AggregatorId, answer: WindowStatus | str, missing: str) -> str:
    if isinstance(answer, str):
        opens = f"windows are decided about shortly before they open, this one opens {utc_text(window.round_one_opens)}"
        why = f"the window is missing: {missing}" if missing else opens
        return answer + f"; {why}" * _is_unknown(answer)
    parts = [answer.state.value + (f" ({answer.abort_reason})" if answer.abort_reason else "")]
    wait = expected_wait(window, answer.state, leads=name == window.leader.aggregator_id, give_up_s=None)
    if wait is not None:
        parts.append(wait.text(time.time()))
    if answer.set_digest is not None:
        parts.append(f"set {answer.set_digest.hex()[:16]}")
    refused = ", ".join(f"{reason.label} {count}" for reason, count in answer.rejections)
    parts.append(f"refused: {refused or 'none'}")
    return "  ".join(parts)


def _conclude(answers: Mapping[AggregatorId, WindowStatus | str], missing: str, *, quiet: bool) -> None:
    statuses = [answer for answer in answers.values() if not isinstance(answer, str)]
    digests = [answer.set_digest for answer in statuses if answer.set_digest is not None]
    if len(set(digests)) > 1:
        raise CheckFailedError("the aggregators' set digests differ; nothing can be released")
    if len(digests) > 1 and not quiet:  # Who adopted a record has no digest of its own.
        click.echo("set digests: equal")
    for answer in statuses:
        if answer.abort_reason:
            raise RefusedByPolicyError(f"the window was aborted: {answer.abort_reason}")
    if missing and all(map(_is_unknown, answers.values())):
        raise RefusedByPolicyError(f"the window is missing: {missing}")
    silent = [str(name) for name, answer in answers.items() if isinstance(answer, str)]
    if silent:
        raise CannotReachError(f"no status from {', '.join(silent)}")


async def ask_statuses(config_path: Path, window: Window) -> dict[AggregatorId, WindowStatus | str]:
    """Return every aggregator's status of a window, or why it gave none, as this aggregator's operator.

    Raises:
        UsageError: the configuration cannot be used, or the window names an aggregator it does not know.
    """
    operator = operator_of(config_path)
    own = operator.aggregator_id
    endpoints = {AggregatorId(peer.id): peer.endpoint for peer in operator.config.peers}
    endpoints[own] = operator.config.grpc.peer_listen
    unknown = [str(one.aggregator_id) for one in window.aggregators if one.aggregator_id not in endpoints]
    if unknown:
        raise UsageError(f"{config_path} does not know the aggregator {unknown[0]!r} of the window")
    reader, names = read_reader(config_path), [one.aggregator_id for one in window.aggregators]
    answers = await asyncio.gather(
        *(_status(own, name, endpoints[name], reader.credentials(name), window.window_id) for name in names)
    )
    return dict(zip(names, answers, strict=True))


async def _status(
    own: AggregatorId,
    name: AggregatorId,
    endpoint: str,
    credentials: grpc.ChannelCredentials | None,
    window_id: WindowId,
    clock: "_Clock | None" = None,
) -> WindowStatus | str:
    peer = GrpcPeer(name, endpoint, caller=own, timeout_s=_TIMEOUT_S, credentials=credentials, greetings=clock)
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

    def say(self, to: AggregatorId, tls_key: bytes = b"") -> bytes:
        del to, tls_key
        return b""

    def check_answerer(self, peer: AggregatorId, said: bytes, called: bytes, tls_key: bytes = b"") -> None:
        del peer, said, called, tls_key

    async def hear_answer(
        self, peer: AggregatorId, said: bytes, asked: float, called: bytes = b"", tls_key: bytes = b""
    ) -> None:
        del peer, called, tls_key

        self.skew = Skew.of(decode_greeting(said).time_ms / 1000, asked, self.now()) if said else None


async def ask_peer(config_path: Path, name: str, endpoint: str) -> tuple[str, Skew | None]:
    """Return "" when the peer answers an aggregator of this configuration, else why it does not; and its clock.

    It is asked for a window that does not exist: a refusal by name is the right answer.
    """
    own, peer, clock = operator_of(config_path).aggregator_id, AggregatorId(name), _Clock()
    credentials = read_reader(config_path).credentials(peer)
    answer = await _status(own, peer, endpoint, credentials, WindowId(bytes(32)), clock)
    return answer if isinstance(answer, str) and "unknown_window" not in answer else "", clock.skew
