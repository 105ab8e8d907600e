"""The state of an aggregator as HTML: tables that need no script, each part by its name.

It builds texts and must not read anything. Every text is escaped here.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from fleetcount_aggregator.host.reasons import clock_time

from fleetcount_site.console.state import AggregatorState, WindowState
from fleetcount_site.pages import escaped

_SHORT: Final = 12
_STATES: Final = ("announced", "collecting", "agreeing", "releasing", "released", "aborted")
_WIDE: Final = frozenset({"Why it waits", "Why", "Missing windows", "For the time"})
"""Columns of sentences, which need room on a narrow screen."""
_WARN_DAYS: Final = 14
_PARTS: Final = (
    ("checks", "Checks"),
    ("windows", "Windows"),
    ("certificates", "Certificates"),
    ("questions", "Questions"),
    ("ledger", "Ledger"),
)


def body(state: AggregatorState) -> str:
    """Return the content of the page."""
    found = parts(state)
    sections = "".join(
        f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title" data-part="{name}">'
        f"{found[name]}</div></section>\n"
        for name, title in _PARTS
    )
    return (
        f"<header>\n<h1>Aggregator {escaped(state.aggregator)}</h1>\n"
        f'<p class="soft">Read from {escaped(state.store)} and from the running process.'
        " Nothing can be changed here.</p>\n"
        f'<p id="state" role="status" aria-live="polite" data-part="state">{found["state"]}</p>\n'
        f'<p id="read" class="soft" data-part="read">{found["read"]}</p>\n</header>\n{sections}'
        "<noscript><p>Without scripts this page stays as it is: load it again to see the state again.</p></noscript>"
    )


def parts(state: AggregatorState) -> Mapping[str, str]:
    """Return the page's parts by name, as HTML; equal content gives equal text."""
    return {
        "state": _summary(state),
        "read": f"Read at {_moment(state.at)}.",
        "checks": _checks(state),
        "windows": _windows(state),
        "certificates": _certificates(state),
        "questions": _questions(state),
        "ledger": _ledger(state),
    }


def _moment(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))} UTC"


def _marked(words: object, *, good: bool) -> str:
    return f'<span class="{"good" if good else "bad"}">{escaped(words)}</span>'


def _named(name: str, identity: str) -> str:
    return f"{escaped(name)}<br><code>{escaped(identity[:_SHORT])}</code>"


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> str:
    """Return a table; its cells are HTML, and the first cell of a row is the row's header."""
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


def _summary(state: AggregatorState) -> str:
    if state.store_error:
        return _marked(f"The store cannot be read: {state.store_error}", good=False)
    if state.answers is None:
        return escaped(
            "The configuration names no [metrics] listen to ask: only its store is shown, not whether it runs."
        )
    if not state.answers:
        return _marked("The aggregator does not answer: what is below is what its store says.", good=False)
    failing = [check.name for check in state.checks if not check.ok]
    if failing:
        return _marked(f"It runs; not ready: {', '.join(failing)}.", good=False)
    return _marked("It runs and is ready.", good=True)


def _checks(state: AggregatorState) -> str:
    rows = [
        (escaped(one.name), _marked("holds" if one.ok else "FAILS", good=one.ok), escaped(one.reason))
        for one in state.checks
    ]
    return _table("What it needs to do all of its work", ("Check", "Now", "Why"), rows, "not known: /readyz")


def _windows(state: AggregatorState) -> str:
    windows = sorted(state.windows, key=lambda one: _STATES.index(one.line.state.value))
    found = Counter(one.line.state.value for one in windows)
    caption = ", ".join(f"{name}: {found[name]}" for name in _STATES if found[name])
    damaged = [
        (f"<code>{escaped(window[:_SHORT])}</code>", _marked("quarantined", good=False), "", escaped(damage), "")
        for window, damage in state.quarantined.items()
    ]
    return _table(
        f"All that are open and the last that were installed; {caption}" if caption else "In quarantine",
        ("Window", "State", "Next deadline", "Why it waits", "Refused for"),
        [*damaged, *(_window_row(one, state.at) for one in windows)],
        "No windows.",
    )


def _window_row(one: WindowState, at: float) -> Sequence[str]:
    line = one.line
    index = "" if line.index is None else f", window {line.index}"
    state = f"{line.state.value} ({line.abort_reason})" if line.abort_reason else line.state.value
    return (
        _named(line.name + index, line.window_id.hex()),
        _marked(state, good=False) if line.state.value == "aborted" else escaped(state),
        escaped("" if one.until is None else clock_time(one.until, at)),
        escaped(one.wait),
        # Reasons without their numbers: refused and accepted reports add up to the number of participants.
        escaped(", ".join(sorted(reason.label for reason in line.rejections))),
    )


def _certificates(state: AggregatorState) -> str:
    rows = [
        (escaped(name), escaped(f"{days:.1f} days") if days >= _WARN_DAYS else _marked(f"{days:.1f} days", good=False))
        for name, days in state.days_left.items()
    ]
    return _table("Until the first of each file ends", ("Certificate", "Left"), rows, "None.")


def _questions(state: AggregatorState) -> str:
    rows = [
        (
            _named(one.name, one.question_id.hex()),
            escaped(f"{one.released} of {one.windows}"),
            escaped("none" if one.opens is None else f"window {one.following}, {clock_time(one.opens, state.at)}"),
            escaped("; ".join(f"{why}: {len(lost)}, the last is {lost[-1]}" for why, lost in one.missing.items())),
        )
        for one in state.questions
    ]
    columns = ("Question", "Released", "Next opens", "Missing windows")
    return _table("Windows of every question", columns, rows, "No question.")


def _ledger(state: AggregatorState) -> str:
    charged = [
        (
            escaped(one.signal),
            escaped(f"epsilon {one.epsilon}"),
            escaped(f"{_moment(one.opens)} to {_moment(one.closes)}"),
            f"<code>{one.window_id.hex()[:_SHORT]}</code>",
        )
        for one in state.ledger
    ]
    columns = ("Signal", "Charged", "For the time", "Window")
    table = _table("The last releases and what each was charged", columns, charged, "Nothing was charged yet.")
    shares = ""
    if state.spent:
        caption = "What open windows, questions and releases take of a signal's budget, in its fullest period"
        rows = [_share(signal, spent, state.allowed) for signal, spent in sorted(state.spent.items())]
        shares = _table(caption, ("Signal", "Epsilon", "Share of the budget"), rows, "")
    return f'<p class="soft">{escaped(state.limits)}</p>{shares}{table}'


def _share(signal: str, spent: Decimal, allowed: Decimal) -> Sequence[str]:
    # Rounded up: the page never shows less than was spent.
    shown = spent.quantize(Decimal("0.001"), ROUND_CEILING).normalize()
    share = (100 * spent / allowed).quantize(Decimal("0.1"), ROUND_CEILING)
    return (escaped(signal), escaped(f"{shown:f} of {allowed:f}"), escaped(f"{share} %"))
