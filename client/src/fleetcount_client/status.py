"""What a device is doing now, for the program that embeds it: whom it reached, what is ahead, and if nothing, why.

Reads the state file and sends nothing; it must not say a truth, a coin, a key or what a message held.
"""

from collections.abc import Callable, Iterable

from fleetcount_protocol.task.task import SignedTask, Task

from fleetcount_client.contact import Contact, Contacts, DeviceStatus
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.spool import Spool

__all__ = ["status_of"]


def status_of(
    spool: Spool,
    contacts: Contacts,
    under_way: Iterable[SignedTask],
    *,
    waits: Callable[[], PolicyRefusal | None],
    sources: tuple[Contact, ...],
    now: float,
) -> DeviceStatus:
    """Return the status of a device; `waits` says why it answers nothing yet, and begins a new ledger."""
    ahead = [(one.asked_at, one.name) for one in spool.charges() if not one.sent and one.asked_until > now]
    for signed in under_way:
        if (at := _next_moment(signed.task, now)) is not None:
            ahead.append((int(at), signed.task.name))
    moment, name = min(ahead, default=(None, ""))
    return DeviceStatus(
        now=now,
        contacts=contacts.all(),
        silent_since=contacts.silent_since,
        next_task=name,
        next_at=None if moment is None else max(now, moment),
        why_silent="" if ahead else _why_silent(spool, contacts, waits),
        sources=sources,
    )


def _next_moment(task: Task, now: float) -> float | None:
    """Return when a device next has something to do for a task: now within its windows; None when both are over."""
    return max(float(task.round_one_opens), now) if now < task.round_two_closes else None


def _why_silent(spool: Spool, contacts: Contacts, waits: Callable[[], PolicyRefusal | None]) -> str:
    if contacts.silent_since is not None:
        return f"nobody answers: {contacts.troubles()}"
    if (reason := waits()) is not None:
        return reason.message
    if refused := spool.refusals():
        last = max(refused, key=lambda one: one.refused_at)
        return f"nothing is on offer that this device answers; {last.name} was refused: {last.message}"
    return "nothing is on offer" if contacts.all() else "nobody has been asked yet"
