"""Many cases of one rule in one test: what fails names its case."""

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["case"]


@contextmanager
def case(name: str) -> Generator[None]:
    """Put the name of the case beside whatever fails in the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the case is {name!r}")
        raise
