"""The tables [epochs] and [schedule]: how often a question is asked, one by one or as one standing question.

It must not solve for noise: that needs the answer law (`scenario.mechanisms`).
"""

import re
from fractions import Fraction
from typing import Final, cast

from fleetcount_protocol.question.fields import Coin
from fleetcount_transport.settings import read_settings, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, shown

from fleetcount_simulator.model import Epochs
from fleetcount_simulator.standing import StandingQuestion, schedule_of

MOST_WINDOWS: Final = 100_000
MOST_OUTAGES: Final = 100
_COINS: Final = {coin.name.lower(): coin for coin in Coin}
_LEDGER: Final = Range("[1/1000, 1000]")
_DELTA: Final = Range("[1/1000000000000, 1/1000]")
_SHARE: Final = Range("[0, 1]")
_OUTAGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def _outages(table: Table, key: str) -> tuple[tuple[int, int], ...]:
    given, windows = table.raw(key), table.integer("windows", 1, MOST_WINDOWS)
    listed = cast("list[object]", given)
    if not isinstance(given, list) or len(listed) > MOST_OUTAGES:
        raise table.refuse(key, f'a list of at most {MOST_OUTAGES} texts like "100-123", windows counted from 0')
    return tuple(_outage(table, text, windows) for text in listed)


def _outage(table: Table, text: object, windows: int) -> tuple[int, int]:
    found = _OUTAGE.fullmatch(text) if isinstance(text, str) else None
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last < windows:
        allowed = f'texts like "100-123" or "7", first and last window of 0 to {windows - 1}'
        raise table.wrong("outages", f"has {shown(text)}; allowed are {allowed}")
    return first, last


@settings
class EpochsTable:
    """[epochs]: how many questions are asked one by one, and what a device's ledger allows in all."""

    count: int = setting(Table.integer, 1, MOST_WINDOWS, default=1)
    device_epsilon: Fraction | None = setting(Table.number, _LEDGER, default=None)


@settings
class ScheduleTable:
    """[schedule]: one standing question, its promise, and the shares of devices that join and leave."""

    windows: int = setting(Table.integer, 1, MOST_WINDOWS)
    every_s: int = setting(Table.integer, 1, 10**8, default=3600)
    start_s: int = setting(Table.integer, 0, 86_400, default=0)
    coin: str = setting(Table.choice, tuple(_COINS), default="window")
    epsilon: Fraction | None = setting(Table.number, _LEDGER, default=None)
    delta: Fraction = setting(Table.number, _DELTA, default=Fraction(1, 10**9))
    joins: Fraction = setting(Table.number, _SHARE, default=Fraction(0))
    leaves: Fraction = setting(Table.number, _SHARE, default=Fraction(0))
    outages: tuple[tuple[int, int], ...] = setting(_outages, default=())
    device_epsilon: Fraction | None = setting(Table.number, _LEDGER, default=None)


def read_epochs(root: Table, *, tosses: bool) -> Epochs:
    """Return how often a case is asked: [epochs] questions one by one, or the windows of one [schedule].

    Without a sampling coin (`tosses` False) the key `coin` has no effect.

    Raises:
        ScenarioError: both tables, an unknown key or one outside its range, an outage that is no pair of windows.
    """
    if not root.has("schedule"):
        epochs = read_settings(root, "epochs", EpochsTable)
        return Epochs(count=epochs.count, device_epsilon=epochs.device_epsilon)
    if root.has("epochs"):
        raise root.wrong(
            "epochs", "and schedule are both given; ask questions one by one, or one question in many windows"
        )
    table = read_settings(root, "schedule", ScheduleTable)
    question = StandingQuestion(
        schedule=schedule_of(table.windows, table.every_s, table.start_s),
        coin=_COINS[table.coin] if tosses else Coin.WINDOW,
        epsilon=table.epsilon,
        delta=table.delta,
        joins=table.joins,
        leaves=table.leaves,
        outages=table.outages,
    )
    return Epochs(count=table.windows, device_epsilon=table.device_epsilon, question=question)
