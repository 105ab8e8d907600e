"""What a device is doing now, for the program that embeds it: whom it reached, what is ahead, and if nothing, why.

Reads the state file and sends nothing; it must not say a truth, a coin, a key or what a message held.
"""

from collections.abc import Callable, Iterable

from fleetcount_protocol.window.window import Window

from fleetcount_client.contact import Contact, Contacts, DeviceStatus, Outcome, OutcomeKind, SignalStatus
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.spool import Spool


def status_of(  # noqa: PLR0913 - a status tells of every part of a device
    spool: Spool,
    contacts: Contacts,
    under_way: Iterable[Window],
    refused: Iterable[Outcome],
    *,
    waits: Callable[[], PolicyRefusal | None],
    sources: tuple[Contact, ...],
    signals: tuple[SignalStatus, ...],
    lapsed: str,
    now: float,
) -> DeviceStatus:
    """Return the status of a device; `waits` says why it answers nothing yet, and begins a new ledger.

    `refused` is what it refused of the offers it saw last; the state file has what it has checked of them.
    """
    ahead = [(one.asked_at, one.name) for one in spool.charges() if not one.sent and one.asked_until > now]
    ahead += [(max(one.round_one_opens, int(now)), one.name) for one in under_way if now < one.round_two_closes]
    moment, name = min(ahead, default=(None, ""))
    return DeviceStatus(
        now=now,
        contacts=contacts.all(),
        silent_since=contacts.silent_since,
        next_window=name,
        next_at=None if moment is None else max(now, moment),
        why_silent="" if ahead else lapsed or _why_silent(spool, contacts, waits, [_said_of(one) for one in refused]),
        sources=sources,
        signals=signals,
    )


def _said_of(outcome: Outcome) -> str:
    how = "missed" if outcome.kind is OutcomeKind.MISSED else "refused"
    return f"{outcome.name} was {how}: {outcome.reason}"


def _why_silent(
    spool: Spool,
    contacts: Contacts,
    waits: Callable[[], PolicyRefusal | None],
    refused: list[str],
) -> str:
    if contacts.silent_since is not None:
        return f"nobody answers: {contacts.troubles()}"
    if (reason := waits()) is not None:
        return reason.message
    if said := refused or [f"{one.name} was refused: {one.message}" for one in spool.refusals()]:
        return f"nothing is on offer that this device answers; {said[-1]}"
    return "nothing is on offer" if contacts.all() else "nobody has been asked yet"
