"""Versions of a database schema: the tables of a new database, and the migration of an older one, in one transaction.

An aggregator's store and a device's spool use it. It knows no table and no engine.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

NEW: Final = 0
"""The version of a database without tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The tables of one version. `steps`: by version, the statements that migrate its tables to the next version."""

    version: int
    tables: Sequence[str]
    steps: Mapping[int, Sequence[str]]

    def knows(self, version: int) -> bool:
        """Return whether a database of this version is new, of the present version, or one that can be migrated."""
        return version in (NEW, self.version) or version in self.steps

    def serves(self, version: int) -> bool:
        """Return whether a program of this schema works on a database of a version without migration.

        It does on the present version and, where there is a step from it, on the one before.
        """
        return version == self.version or (version == self.version - 1 and version in self.steps)

    def statements(self, version: int) -> list[str]:
        """Return the statements that migrate a database of a version that it `knows` to the present version."""
        if version == NEW:
            return list(self.tables)
        return [statement for one in range(version, self.version) for statement in self.steps[one]]

    @property
    def span(self) -> str:
        """The versions that it `knows`, as an error names them: "2", or "1 to 2" if there is a step."""
        oldest = min(self.steps, default=self.version)
        return str(self.version) if oldest == self.version else f"{oldest} to {self.version}"


def bring_up(
    schema: Schema,
    *,
    begin: str,
    find: Callable[[], int],
    execute: Callable[[str], object],
    note: Callable[[int], object],
) -> None:
    """Migrate a database to the present version in one transaction, which a crash leaves undone as a whole.

    `begin` starts a transaction with an exclusive lock; `find` returns the version, and raises the caller's error for
    one that the schema does not know; `note` stores a version. Raises their errors.
    """
    if find() == schema.version:
        return
    execute(begin)
    try:
        # Another process may have migrated meanwhile: read the version again under the lock.
        found = find()
        if found != schema.version:
            for statement in schema.statements(found):
                execute(statement)
            note(schema.version)
        execute("COMMIT")
    except BaseException:
        # On a lost connection the rollback fails, and the database has undone the transaction itself.
        with suppress(Exception):
            execute("ROLLBACK")
        raise
