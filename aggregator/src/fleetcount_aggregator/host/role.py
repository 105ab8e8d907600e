"""The roles that one process of an aggregator may have; embedded it has all. Decides nothing about what each does."""

from enum import StrEnum

from fleetcount_protocol.errors import UsageError


class Role(StrEnum):
    """What a process does for its aggregator; the value is the word on the command line and in the database."""

    INTAKE = "intake"
    """Serves devices."""
    WORKER = "worker"
    """Verifies batches of reports."""
    COORDINATOR = "coordinator"
    """Stands for election; the one that is elected does what happens once."""


ALL_ROLES = frozenset(Role)


def read_roles(text: str) -> frozenset[Role]:
    """Return the roles of a list with commas.

    Raises:
        UsageError: one is none, or there is none at all.
    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word not in list(Role)]
    if wrong:
        raise UsageError(f"--roles names {wrong[0]!r}; allowed are some of {', '.join(Role)}, with commas between")
    return frozenset(map(Role, words))
