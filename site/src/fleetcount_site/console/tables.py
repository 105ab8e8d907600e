"""What a console has seen as HTML: tables that read without a script, each part by its name.

Builds texts; it must not look anything up. Every text is escaped here.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from fleetcount_aggregator.host.reasons import clock_time
from fleetcount_transport.watching import duration

from fleetcount_site.console.looking import Seen, WindowSeen
from fleetcount_site.pages import escaped

_SHORT: Final = 12
_OPEN: Final = ("announced", "collecting", "agreeing", "releasing")
_STATES: Final = (*_OPEN, "released", "aborted")
_WIDE: Final = frozenset({"What it says", "Why it waits", "Why", "Missing windows", "For the time"})
"""Columns of sentences, which need room on a narrow screen."""
_NOT_KNOWN: Final = "not known"
_PARTS: Final = (
    ("alerts", "Alerts"),
    ("windows", "Windows"),
    ("checks", "Checks"),
    ("peers", "Other aggregators"),
    ("certificates", "Certificates"),
    ("refused", "Refused"),
    ("questions", "Questions"),
    ("ledger", "Ledger"),
)


def body(seen: Seen) -> str:
    """Return the content of the page."""
    found = parts(seen)
    sections = "".join(
        f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title" data-part="{name}">'
        f"{found[name]}</div></section>\n"
        for name, title in _PARTS
    )
    return (
        f"<header>\n<h1>Aggregator {escaped(seen.aggregator)}</h1>\n"
        f'<p class="soft">Read from {escaped(seen.store)} and from the running process.'
        " Nothing can be changed here.</p>\n"
        f'<p id="state" role="status" aria-live="polite" data-part="state">{found["state"]}</p>\n'
        f'<p id="looked" class="soft" data-part="looked">{found["looked"]}</p>\n</header>\n{sections}'
        "<noscript><p>Without scripts this page stays as it is: load it again to look again.</p></noscript>"
    )


def parts(seen: Seen) -> Mapping[str, str]:
    """Return the page's parts by name, as HTML; a part that says the same is the same text."""
    return {
        "state": _state(seen),
        "looked": f"Looked at {_moment(seen.at)}.",
        "alerts": _alerts(seen),
        "windows": _windows(seen),
        "checks": _checks(seen),
        "peers": _peers(seen),
        "certificates": _certificates(seen),
        "refused": _refused(seen),
        "questions": _question(seen),
        "ledger": _ledger(seen),
    }


def _moment(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))} UTC"


def _text(words: object) -> str:
    return escaped(words)


def _marked(words: object, *, good: bool) -> str:
    return f'<span class="{"good" if good else "bad"}">{escaped(words)}</span>'


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> str:
    """Return a table of cells that are HTML already; the first of a row is its head."""
    marks = [' class="wide"' if name in _WIDE else "" for name in columns]
    lines = [
        f'<tr><th scope="row">{row[0]}</th>'
        f"{''.join(f'<td{mark}>{cell}</td>' for mark, cell in zip(marks[1:], row[1:], strict=True))}</tr>"
        for row in rows
    ]
    if not lines:
        return f"<p>{escaped(empty)}</p>"
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in columns)
    return (
        f"<table><caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _state(seen: Seen) -> str:
    if seen.trouble:
        return _marked(f"The store cannot be read: {seen.trouble}", good=False)
    if seen.runs is None:
        return _text(
            "The configuration names no [metrics] listen to ask: only its store is shown, not whether it runs."
        )
    if not seen.runs:
        return _marked("The aggregator does not answer: what is below is what its store says.", good=False)
    failing = [check.name for check in seen.checks if not check.ok]
    raised = [one.rule.name for one in seen.alerts if one.counts]
    said = [f"not ready: {', '.join(failing)}"] if failing else []
    said += [f"alerts: {', '.join(raised)}"] if raised else []
    return _marked(f"It runs; {'; '.join(said)}.", good=False) if said else _marked("It runs and is ready.", good=True)


def _alerts(seen: Seen) -> str:
    rows = [
        (
            _text(one.rule.name),
            _text(one.rule.severity),
            _marked(f"for {duration(firing.for_s)}", good=False)
            if firing.for_s >= one.rule.wait_s
            else _text(f"for {duration(firing.for_s)}, counts after {duration(one.rule.wait_s)}"),
            _text(firing.sentence),
        )
        for one in seen.alerts
        for firing in one.firing
    ]
    if seen.runs is None:
        return f"<p>{_NOT_KNOWN} without [metrics]</p>"
    since = f"what grows is compared with up to an hour ago; this console has looked for {duration(seen.watched_s)}"
    table = _table(
        "Conditions of the shipped alerts that hold",
        ("Alert", "Severity", "Holds", "What it says"),
        rows,
        "No condition of the shipped alerts holds.",
    )
    return f'{table}<p class="soft">{escaped(since[:1].upper() + since[1:])}.</p>'


def _windows(seen: Seen) -> str:
    order = {state: place for place, state in enumerate(_STATES)}
    windows = sorted(seen.windows, key=lambda one: order[one.line.state.value])
    found = Counter(one.line.state.value for one in windows)
    caption = ", ".join(f"{state}: {found[state]}" for state in _STATES if found[state])
    rows = [_window_row(one, seen) for one in windows]
    damaged = [
        (_text(window[:_SHORT]), _marked("quarantined", good=False), "", _text(f"in quarantine: {damage}"), "")
        for window, damage in seen.quarantined.items()
    ]
    return _table(
        f"All that are open and the last that were installed; {caption}" if caption else "In quarantine",
        ("Window", "State", "Next deadline", "Why it waits", "Refused for"),
        [*damaged, *rows],
        "No windows.",
    )


def _window_row(one: WindowSeen, seen: Seen) -> Sequence[str]:
    line = one.line
    window = "" if line.index is None else f", window {line.index}"
    state = f"{line.state.value} ({line.abort_reason})" if line.abort_reason else line.state.value
    return (
        f"{_text(line.name + window)}<br><code>{line.window_id.hex()[:_SHORT]}</code>",
        _marked(state, good=False) if line.state.value == "aborted" else _text(state),
        _text("" if one.until is None else clock_time(one.until, seen.at)),
        _text(one.wait),
        # Reasons without their numbers: what was refused and what was not add up to who took part.
        _text(", ".join(sorted(reason.label for reason in line.rejections))),
    )


def _checks(seen: Seen) -> str:
    rows = [
        (_text(one.name), _marked("holds" if one.ok else "FAILS", good=one.ok), _text(one.reason))
        for one in seen.checks
    ]
    return _table("What it needs to do all of its work", ("Check", "Now", "Why"), rows, f"{_NOT_KNOWN}: /readyz")


def _peers(seen: Seen) -> str:
    answers = {None: _NOT_KNOWN, True: _marked("yes", good=True), False: _marked("NO", good=False)}
    rows = [
        (
            _text(one.name),
            _text(one.operator),
            answers[one.answers],
            _text(_NOT_KNOWN if one.skew_s is None else f"{one.skew_s:+.1f} s"),
        )
        for one in seen.peers
    ]
    return _table("When they were last asked", ("Aggregator", "Operator", "Answers", "Its clock"), rows, "None.")


def _certificates(seen: Seen) -> str:
    rows = [
        (_text(name), _text(f"{days:.1f} days") if days >= 14 else _marked(f"{days:.1f} days", good=False))
        for name, days in seen.days_left.items()
    ]
    return _table("Until the first of each file ends", ("Certificate", "Left"), rows, "None.")


def _refused(seen: Seen) -> str:
    if not seen.runs:
        return f"<p>{_NOT_KNOWN}: only the running process knows</p>"
    rows = [(_text(reason), _text(often)) for reason, often in seen.refused.items()]
    return _table("By reason; how often, roughly", ("Reason", "How often"), rows, "Nothing since it was started.")


def _question(seen: Seen) -> str:
    rows = [
        (
            f"{_text(one.name)}<br><code>{one.question_id.hex()[:_SHORT]}</code>",
            _text(f"{one.released} of {one.windows}"),
            _text("none" if one.opens is None else f"window {one.following}, {clock_time(one.opens, seen.at)}"),
            _text(
                "; ".join(
                    f"{reason}: {len(windows)}, the last is {windows[-1]}" for reason, windows in one.missing.items()
                )
            ),
        )
        for one in seen.questions
    ]
    return _table(
        "Windows of every question", ("Question", "Released", "Next opens", "Missing windows"), rows, "No question."
    )


def _ledger(seen: Seen) -> str:
    rows = [
        (
            _text(one.signal),
            _text(f"epsilon {one.epsilon}"),
            _text(f"{_moment(one.opens)} to {_moment(one.closes)}"),
            f"<code>{one.window_id.hex()[:_SHORT]}</code>",
        )
        for one in seen.ledger
    ]
    columns = ("Signal", "Charged", "For the time", "Window")
    table = _table("The last releases and what each was charged", columns, rows, "Nothing was charged yet.")
    shares = [_share(signal, spent, seen.allowed) for signal, spent in sorted(seen.spent.items())]
    return f'<p class="soft">{escaped(seen.limits)}</p>{_shares(shares)}{table}'


def _share(signal: str, spent: Decimal, allowed: Decimal) -> Sequence[str]:
    shown = spent.quantize(Decimal("0.001"), ROUND_CEILING).normalize()
    return (_text(signal), _text(f"{shown:f} of {allowed:f}"), _text(f"{100 * spent / allowed:.1f} %"))


def _shares(rows: Sequence[Sequence[str]]) -> str:
    """Return how much of its budget each signal has taken, nothing where none has."""
    if not rows:
        return ""
    columns = ("Signal", "Epsilon", "Share of the budget")
    return _table(
        "What open windows, question and releases take of a signal's budget, in its fullest period", columns, rows, ""
    )
