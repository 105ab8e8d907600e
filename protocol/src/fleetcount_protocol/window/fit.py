"""Which kinds of readings can be a value of a domain at all, in words for the owner of a device."""

import re
from typing import Final

from fleetcount_protocol.window.domain import Bins, Categories, H3Cells, Numbers, Prefixes, SingleDomain, SquareGrid
from fleetcount_protocol.window.signal import Kind

_ASKED: Final = {
    Bins: Kind.NUMBER,
    Numbers: Kind.NUMBER,
    SquareGrid: Kind.POSITION,
    H3Cells: Kind.TEXT,
}
_WHOLE: Final = re.compile("0|-?[1-9][0-9]*", re.ASCII)


def _asked(domain: Bins | Numbers | SquareGrid | H3Cells | Prefixes) -> Kind:
    if isinstance(domain, Prefixes):
        return Kind.NUMBER if domain.codes is None else Kind.TEXT
    return _ASKED[type(domain)]


def misfit(domain: SingleDomain, kind: Kind) -> str:
    """Return why no reading of a kind is ever a value of the domain, in words for the owner; "" where one may be."""
    if not isinstance(domain, Categories):
        asked = _asked(domain)
        return "" if kind is asked else f"it is {kind.value}, and the question asks for {asked.value}"
    if kind is Kind.TEXT:
        return ""
    if kind is Kind.TRUTH_VALUE:
        fits, which = not {"true", "false"}.isdisjoint(domain.names), "'true' or 'false'"
    else:
        fits, which = kind is Kind.NUMBER and any(map(_WHOLE.fullmatch, domain.names)), "a whole number"
    named = f"and none of the question's names is {which}" if kind is not Kind.POSITION else "the question has names"
    return "" if fits else f"it is {kind.value}, {named}"
