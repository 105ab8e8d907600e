"""The roles that one process of an aggregator may have; a single process has all."""

from enum import StrEnum

from fleetcount_protocol.errors import UsageError


class Role(StrEnum):
    """The work of a process for its aggregator; the value is the word on the command line and in the database."""

    INTAKE = "intake"
    """Serves devices."""
    WORKER = "worker"
    """Verifies batches of reports."""
    COORDINATOR = "coordinator"
    """Is a candidate for election; the elected one does the work that must be done by one process."""


ALL_ROLES = frozenset(Role)


def read_roles(text: str) -> frozenset[Role]:
    """Return the roles of a list with commas.

    Raises:
        UsageError: a word is no role, or the list is empty.
    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word not in list(Role)]
    if wrong:
        raise UsageError(f"--roles names {wrong[0]!r}; allowed are some of {', '.join(Role)}, with commas between")
    return frozenset(map(Role, words))
