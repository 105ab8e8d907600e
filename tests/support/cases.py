"""Many cases of one rule in one test: what fails names its case."""

from collections.abc import Generator
from contextlib import contextmanager

from tests.support.nightly import NIGHTLY


@contextmanager
def case(name: str) -> Generator[None]:
    """Put the name of the case beside whatever fails in the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the case is {name!r}")
        raise


def places_of_bits(data: bytes, start: int = 0) -> range:
    """Return the bits to flip from byte `start` on: every one in `make nightly`, else every seventh.

    Every byte then has one of its bits flipped, each place of a bit in its turn.
    """
    return range(8 * start, 8 * len(data), 1 if NIGHTLY else 7)
