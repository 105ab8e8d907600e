"""The tables [epochs] and [schedule]: how often a question is asked, one by one or as one standing question.

Reads; it must not solve for noise: a mechanism does, which knows its answers.
"""

import re
from fractions import Fraction
from typing import Final, cast

from fleetcount_protocol.question.fields import Coin
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, shown

from fleetcount_simulator.model import Epochs
from fleetcount_simulator.standing import StandingQuestion, schedule_of

MOST_WINDOWS: Final = 100_000
MOST_OUTAGES: Final = 100
QUESTION_KEYS: Final = (
    *("windows", "every_s", "start_s", "coin", "epsilon", "delta"),
    *("joins", "leaves", "outages", "device_epsilon"),
)
_COINS: Final = {coin.name.lower(): coin for coin in Coin}
_LEDGER: Final = Range("[1/1000, 1000]")
_SHARE: Final = Range("[0, 1]")
_OUTAGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def read_epochs(root: Table, *, tosses: bool) -> Epochs:
    """Return how often is asked: [epochs] questions one by one, or the windows of one [schedule].

    Where devices toss no sampling coin (`tosses` False) it holds for a window.

    Raises:
        ScenarioError: both tables, an unknown key or one outside its range, an outage that is no pair of windows.
    """
    if not root.has("schedule"):
        table = root.section("epochs", ("count", "device_epsilon"))
        count = table.integer("count", 1, MOST_WINDOWS, 1)
        return Epochs(count=count, device_epsilon=table.optional("device_epsilon", _LEDGER))
    if root.has("epochs"):
        raise root.wrong("epochs", "and questions are both given; ask one by one or as a question")
    table = root.section("schedule", QUESTION_KEYS)
    coin = _COINS[table.choice("coin", tuple(_COINS), "window")]
    question = StandingQuestion(
        schedule=schedule_of(
            windows := table.integer("windows", 1, MOST_WINDOWS),
            table.integer("every_s", 1, 10**8, 3600),
            table.integer("start_s", 0, 86_400, 0),
        ),
        coin=coin if tosses else Coin.WINDOW,
        epsilon=table.optional("epsilon", Range("[1/1000, 1000]")),
        delta=table.number("delta", Range("[1/1000000000000, 1/1000]"), Fraction(1, 10**9)),
        joins=table.number("joins", _SHARE, Fraction(0)),
        leaves=table.number("leaves", _SHARE, Fraction(0)),
        outages=_outages(table, windows),
    )
    return Epochs(count=windows, device_epsilon=table.optional("device_epsilon", _LEDGER), question=question)


def _outages(table: Table, windows: int) -> tuple[tuple[int, int], ...]:
    given = table.raw("outages")
    if given is None:
        return ()
    listed = cast("list[object]", given)
    if not isinstance(given, list) or len(listed) > MOST_OUTAGES:
        raise table.refuse("outages", f'a list of at most {MOST_OUTAGES} texts like "100-123", windows counted from 0')
    return tuple(_outage(table, text, windows) for text in listed)


def _outage(table: Table, text: object, windows: int) -> tuple[int, int]:
    found = _OUTAGE.fullmatch(text) if isinstance(text, str) else None
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last < windows:
        allowed = f'texts like "100-123" or "7", first and last window of 0 to {windows - 1}'
        raise table.wrong("outages", f"has {shown(text)}; allowed are {allowed}")
    return first, last
