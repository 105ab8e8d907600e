"""Refusals of a specification that come from the rules of a question or a law, told by file, line, key and value.

The rules know fields, not files: their first words say which key of the file stands behind them.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_protocol.errors import QuestionError
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import shown

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    r"first|round_one_opens|delay_s|earliest start": ("schedule.opens",),
    r"latest start": ("schedule.submit_by",),
    r"every_s": ("schedule.every",),
    r"windows|the last window expires|[0-9]+ units have": ("schedule.windows", "schedule.until"),
    r"round_one_s|round_one_closes|round one": ("schedule.round_one", "schedule.window"),
    r"round_two_s|round_two_closes|round two|the rounds": ("schedule.window",),
    r"expiry_s|expiry": ("schedule.expires_after",),
    r"coin": ("schedule.coin",),
    r"delta": ("release.delta",),
    r"release has": ("release.thresholds",),
    r"one-sided|release|level": ("release.kind",),
    r"number of levels|levels?": ("drill_down.levels",),
    r"threshold": ("drill_down.threshold",),
    r"most_survivors|a cell has": ("drill_down.most_survivors",),
    r"grid|cells?": ("domain.columns", "domain.cells"),
    r"bins?|edges?": ("domain.edges",),
    r"categor(y|ies)|names?": ("domain.names",),
    r"signal": ("question.signal",),
    r"min_batch_size": ("question.min_batch_size",),
    r"a drill-down is": ("question.mode",),
    r"sampling rate": ("mechanism.sampling_rate",),
    r"aggregators?": ("aggregators",),
}
"""By the first words of a refusal: the keys, the first of which that is given is meant."""
_WINDOW: Final = re.compile(r"window [0-9]+ of the question: ")


@contextmanager
def told_by_key(root: Table) -> Generator[None]:
    """Give refusals of the block file, line, key and value; of those that stand for no one key the file alone.

    Raises:
        UsageError: in place of a QuestionError or MechanismError; what has its place already goes through.
    """
    try:
        yield
    except (QuestionError, MechanismError) as error:
        said = _WINDOW.sub("", str(error))
        key = next((_given(root, keys) for words, keys in _KEYS.items() if re.match(rf"({words})\b", said)), None)
        if key is None:
            raise root.source.refuse("", said) from None
        section, _, name = key.rpartition(".")
        table = root.section(section, None) if section else root
        what = f"is {shown(table.raw(name))}" if section else "do not fit"
        raise table.wrong(name, f"{what}: {said}") from None


def _given(root: Table, keys: tuple[str, ...]) -> str | None:
    for key in keys:
        section, _, name = key.rpartition(".")
        table = root.section(section, None) if section else root
        if table.has(name):
            return key
    return None
