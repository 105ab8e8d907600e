"""How far one window of a question is at every aggregator, as an operator sees it.

Asks and prints; it must not judge a record.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import WindowStatus
from fleetcount_protocol.question.derive import window_at
from fleetcount_protocol.question.orders import started_question
from fleetcount_protocol.question.question import Question

from fleetcount.command.exits import CannotReachError, CheckFailedError, RefusedByPolicyError, one_line
from fleetcount.command.results import show, utc
from fleetcount.question.files import operator_of
from fleetcount.question.orders import installed_question
from fleetcount.read.readers import ask_statuses

if TYPE_CHECKING:
    from fleetcount_protocol.window.window import Window

_UNKNOWN = "unknown_window"
"""What an aggregator says that has not decided about the window yet, or knows nothing of the question."""


def show_states(config_path: Path, question: Question, index: int | None, now: float, *, as_json: bool) -> None:
    """Print every aggregator's state of a window, None: the last that has opened, and whether set digests are equal.

    Raises:
        UsageError: no such window, a later step of a drill-down, or a configuration that cannot be used.
        CheckFailedError: the set digests differ.
        RefusedByPolicyError: the window was aborted somewhere, or the question has no start here yet.
        CannotReachError: an aggregator that does not answer.
    """
    if question.schedule.first is None:
        known = installed_question(question, operator_of(config_path).config.store_place)
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
    lines = [one_line(f"{name:<12} {_text(window, name, answer)}") for name, answer in answers.items()]
    if schedule.windows > 1:
        lines.insert(0, f"window {index}, which opens {utc(window.round_one_opens)}")
    show([_json(index, str(name), answer) for name, answer in answers.items()], lines, as_json=as_json)
    _conclude(answers, quiet=as_json)


def _json(index: int, name: str, answer: WindowStatus | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"aggregator": name, "window": index, "error": answer}
    return {
        "aggregator": name,
        "window": index,
        "state": answer.state.value,
        "abort_reason": answer.abort_reason,
        "set_digest": None if answer.set_digest is None else answer.set_digest.hex(),
        "refused": {reason.label: count for reason, count in answer.rejections},
    }


def _text(window: "Window", name: AggregatorId, answer: WindowStatus | str) -> str:
    from fleetcount_aggregator.host.reasons import expected_wait

    if isinstance(answer, str):
        opens = f"; windows are decided about shortly before they open, this one opens {utc(window.round_one_opens)}"
        return answer + opens * (_UNKNOWN in answer)
    parts = [answer.state.value + (f" ({answer.abort_reason})" if answer.abort_reason else "")]
    wait = expected_wait(window, answer.state, leads=name == window.leader.aggregator_id, give_up_s=None)
    if wait is not None:
        parts.append(wait.text(time.time()))
    if answer.set_digest is not None:
        parts.append(f"set {answer.set_digest.hex()[:16]}")
    refused = ", ".join(f"{reason.label} {count}" for reason, count in answer.rejections)
    parts.append(f"refused: {refused or 'none'}")
    return "  ".join(parts)


def _conclude(answers: Mapping[AggregatorId, WindowStatus | str], *, quiet: bool) -> None:
    statuses = [answer for answer in answers.values() if not isinstance(answer, str)]
    digests = {answer.set_digest for answer in statuses if answer.set_digest is not None}
    if len(digests) > 1:
        raise CheckFailedError("the aggregators' set digests differ; nothing can be released")
    if digests and not quiet:
        click.echo("set digests: equal")
    for answer in statuses:
        if answer.abort_reason:
            raise RefusedByPolicyError(f"the window was aborted: {answer.abort_reason}")
    silent = [str(name) for name, answer in answers.items() if isinstance(answer, str)]
    if silent:
        raise CannotReachError(f"no status from {', '.join(silent)}")
