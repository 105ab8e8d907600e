"""What is said to somebody who is refused, for tests that go through a table of refusals in a loop."""

from collections.abc import Callable


def said_by(kind: type[Exception], function: Callable[..., object], /, *arguments: object) -> str:
    """Return what a refusal of this kind says, "" where nothing is refused; every other error is passed on.

    A test of many cases asserts on the text with the case as its message, so that the one that fails has a name.
    """
    try:
        function(*arguments)
    except kind as refusal:
        return str(refusal)
    return ""
