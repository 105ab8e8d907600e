"""The place of an aggregator's store: a SQLite file in its directory, or a PostgreSQL database. It opens nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """`directory`: of the SQLite file and of the files beside it; `url`: of a PostgreSQL database with the rows."""

    directory: Path
    url: str | None = None
    password_file: Path | None = None

    @property
    def file(self) -> Path:
        """The SQLite file; the names of files beside it begin with its name, also with PostgreSQL."""
        return self.directory / "aggregator.db"

    @property
    def name(self) -> str:
        """The name of the store in messages; a URL has no password, and the part from `?` on is left out."""
        return str(self.file) if self.url is None else self.url.partition("?")[0]
