"""How a window names a device's signal, and the one form in which two names are compared.

Signals are paths of the Vehicle Signal Specification (COVESA VSS, "Data Entry"): a look-alike would have a budget of
its own. It must not read a signal's value: that is the domain's.
"""

import re
import unicodedata
from typing import Final

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.limits import MAX_TEXT_BYTES

_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)*", re.ASCII)


def check_signal(signal: str) -> None:
    """Refuse a signal that is not a path as vehicles name it, for example Vehicle.CurrentLocation.

    Raises:
        QuestionError: characters beyond ASCII letters, digits, "_" and ".", a part that does not begin with a letter,
            or more than 200 characters.
    """
    if len(signal) > MAX_TEXT_BYTES or not _PATH.fullmatch(signal):
        raise QuestionError(
            f"signal is {signal[:40]!a}, allowed: at most {MAX_TEXT_BYTES} of A-Z, a-z, 0-9, '_' in parts that begin "
            "with a letter, separated by '.'"
        )


def normal_signal(signal: str) -> str:
    """Return the form in which budgets compare signals: case folded, Unicode normal form NFC.

    Takes any text, so that a ledger's rows from before `check_signal` still compare.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", signal).casefold())
