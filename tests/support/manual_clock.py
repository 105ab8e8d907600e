"""A clock that stands still unless a test moves it."""


class ManualClock:
    """A clock that only `advance` moves."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`.

        Raises:
            ValueError: seconds below 0.
        """
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}, not >= 0")
        self._now += seconds
