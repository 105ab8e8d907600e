"""What an aggregator holds of one window's reports, in memory and in columns: who sent what, and where it lies.

Numbers only: report ids, certificates and row numbers. Decides what becomes of instalments; reads no file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.limits import MAX_REPORTS_PER_LEAF, MAX_REPORTS_PER_WINDOW, SET_LEAVES
from numpy.typing import NDArray

from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.report_ids import KeyTable, ReportIds, Words

NO_ROW: Final = 2**32 - 1
"""The row number that means: this instalment has not arrived."""
_GROWTH: Final = 1.5

Mask = NDArray[np.bool_]
Rows = NDArray[np.uint32]
Places = NDArray[np.int64]
DigestsOf = Callable[[int, Rows], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class CompleteRows:
    """The complete reports by position: ids (n x 16 bytes), row numbers of their instalments (n x rounds)."""

    ids: bytes
    rounds: tuple[int, ...]
    rows: Rows

    @classmethod
    def none(cls) -> Self:
        """Return no reports at all."""
        return cls(ids=b"", rounds=(), rows=np.empty((0, 0), dtype=np.uint32))


@dataclass(frozen=True, slots=True)
class KnownReports:
    """Some reports, complete or not: ids (n x 16 bytes), certificates (n x 32), by round the rows or `NO_ROW`."""

    ids: NDArray[np.uint8]
    certificates: NDArray[np.uint8]
    rows: Mapping[int, Rows]


class Copies(NamedTuple):
    """Rows that came again: the reports they are of, the row that is held of each, and the one that came."""

    slots: Places
    held: Places
    came: Places


@dataclass(frozen=True, slots=True)
class _Pass:
    """The instalments of a group that are not decided yet, as columns; `places` are those in the group.

    Sums are those of the tables of ids and certificates.
    """

    places: Places
    ids: Words
    id_sums: Words
    certificates: Words
    certificate_sums: Words
    rounds: NDArray[np.uint8]
    digests: NDArray[np.uint8]

    def only(self, mask: Mask) -> "_Pass":
        """Return those of a mask."""
        if mask.all():
            return self
        selected = np.flatnonzero(mask)
        return _Pass(
            self.places.take(selected),
            self.ids.take(selected, axis=0),
            self.id_sums.take(selected),
            self.certificates.take(selected, axis=0),
            self.certificate_sums.take(selected),
            self.rounds.take(selected),
            self.digests.take(selected, axis=0),
        )


class ReportIndex:
    """The reports of one window by their order of arrival; `expected` instalments (1 or 2) make one complete.

    Rows are numbered by round, as they lie in the log. What was taken last can be dropped again when it could not be
    written. Not thread-safe.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._ids = KeyTable(ReportId.SIZE)
        self._certificates = KeyTable(Digest.SIZE)
        self._leaves = np.zeros(SET_LEAVES, dtype=np.int64)
        """How many reports each leaf of the set has."""
        self._rows: dict[int, Rows] = {}
        self._row_counts: dict[int, int] = {}
        self._kept_reports = 0
        self._taken: list[tuple[int, Places]] = []
        self._out: list[Places] = []
        """Which reports are left out when lanes are joined."""
        self._fresh_digests: dict[int, list[NDArray[np.uint8]]] = {}
        """Digests of what was taken since `keep`, by round: arrays of n x 32 bytes."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the columns."""
        rows = sum(column.nbytes for column in self._rows.values())
        return self._ids.memory_bytes + self._certificates.memory_bytes + rows

    def row_count(self, round_number: int) -> int:
        """Return how many instalments of a round there are."""
        return self._row_counts.get(round_number, 0)

    def row(self, report_id: bytes, round_number: int) -> int:
        """Return the row number of an instalment, or `NO_ROW`."""
        key = self._ids.words(report_id)
        slots = self._ids.find(key, self._ids.sums(key))
        return int(self._rows_of(slots, np.array([round_number]))[0])

    def _rows_of(self, slots: Places, rounds: NDArray[np.integer]) -> Rows:
        """Return the row numbers of instalments; slots below 0 have none."""
        found = np.full(len(slots), NO_ROW, dtype=np.uint32)
        if (slots < 0).all():
            return found
        for number, column in self._rows.items():
            here = (rounds == number) & (slots >= 0) & (slots < len(column))
            found[here] = column[slots[here]]
        return found

    def decide(
        self, runs: Sequence[InstalmentRun], *, is_open: bool, digests_of: DigestsOf
    ) -> tuple[NDArray[np.uint8], list[Places]]:
        """Return what becomes of each instalment of some runs, a byte of `StoreOutcome`, and the places of those taken.

        In passes: what concerns one report or one device twice is decided after what came before it. The places of a
        pass ascend, and rows are numbered pass by pass. `digests_of` returns the digests of
        instalments that are durable (n x 32), by their round and row numbers.
        """
        left = self._columns(runs)
        outcomes = np.full(len(left.places), StoreOutcome.CLOSED, dtype=np.uint8)
        taken: list[Places] = []
        while len(left.places):
            left, slots = self._settle(left, outcomes, is_open=is_open, digests_of=digests_of)
            first = self._ids.first_of_each(left.id_sums) & self._certificates.first_of_each(left.certificate_sums)
            beyond = self._beyond(left, first & (slots < 0))
            if beyond.any():
                outcomes[left.places[beyond]] = StoreOutcome.FULL
                left, slots, first = left.only(~beyond), slots[~beyond], first[~beyond]
            self._take(left.only(first), slots[first])
            outcomes[left.places[first]] = StoreOutcome.STORED
            taken.append(left.places[first])
            left = left.only(~first)
        return outcomes, taken

    def _beyond(self, left: _Pass, new: Mask) -> Mask:
        """Return which new reports are more than their leaf or the window may have: no set could hold them."""
        beyond, places = np.zeros(len(new), dtype=np.bool_), np.flatnonzero(new)
        if len(self) + len(places) <= min(MAX_REPORTS_PER_LEAF, MAX_REPORTS_PER_WINDOW) or not len(places):
            return beyond  # Also if all of them were of one leaf.
        leaves = _leaves(left.ids.take(places, axis=0))
        come = np.bincount(leaves, minlength=SET_LEAVES)
        if len(self) + len(places) > MAX_REPORTS_PER_WINDOW:
            beyond[places] = np.arange(len(places)) >= MAX_REPORTS_PER_WINDOW - len(self)
        for leaf in np.flatnonzero(self._leaves + come > MAX_REPORTS_PER_LEAF).tolist():
            beyond[places[leaves == leaf][MAX_REPORTS_PER_LEAF - self._leaves[leaf] :]] = True
        return beyond

    def _columns(self, runs: Sequence[InstalmentRun]) -> _Pass:
        ids = self._ids.words(b"".join([run.report_ids for run in runs]))
        certificates = self._certificates.words(b"".join([run.certificates for run in runs]))
        return _Pass(
            places=np.arange(len(ids)),
            ids=ids,
            id_sums=self._ids.sums(ids),
            certificates=certificates,
            certificate_sums=self._certificates.sums(certificates),
            rounds=np.repeat(np.array([run.round for run in runs], dtype=np.uint8), [len(run) for run in runs]),
            digests=np.frombuffer(b"".join([run.digests for run in runs]), dtype=np.uint8).reshape(-1, Digest.SIZE),
        )

    def _settle(
        self, left: _Pass, outcomes: NDArray[np.uint8], *, is_open: bool, digests_of: DigestsOf
    ) -> tuple[_Pass, Places]:
        """Decide what is held or not to be taken; return the rest and the slots of its reports."""
        slots = self._ids.find(left.ids, left.id_sums)
        owned = self._certificates.find(left.certificates, left.certificate_sums)
        rows = self._rows_of(slots, left.rounds)
        known, held = slots >= 0, rows != NO_ROW
        # A report and its device have one number: they came together.
        foreign, second = known & (owned != slots), ~known & (owned >= 0)
        outcomes[left.places[held]] = StoreOutcome.OTHER_BYTES
        own = held & ~foreign
        for number in np.flatnonzero(np.bincount(left.rounds[own])).tolist():
            asked = np.flatnonzero(own & (left.rounds == number))
            same = (self._digests(number, rows[asked], digests_of) == left.digests[asked]).all(axis=1)
            outcomes[left.places[asked[same]]] = StoreOutcome.SAME
        if not is_open:
            return left.only(np.zeros(len(slots), dtype=np.bool_)), slots[:0]
        outcomes[left.places[foreign & ~held]] = StoreOutcome.OTHER_BYTES
        outcomes[left.places[second]] = StoreOutcome.SECOND_REPORT
        rest = ~(held | foreign | second)
        return left.only(rest), slots[rest]

    def _digests(self, round_number: int, rows: Rows, digests_of: DigestsOf) -> NDArray[np.uint8]:
        """Return the digests of instalments that are held (n x 32)."""
        fresh = self._fresh_digests.get(round_number, [])
        durable = self.row_count(round_number) - sum(map(len, fresh))
        waiting = rows >= durable
        found = np.empty((len(rows), Digest.SIZE), dtype=np.uint8)
        if waiting.any():
            found[waiting] = np.concatenate(fresh)[rows[waiting] - durable]
        if not waiting.all():
            found[~waiting] = digests_of(round_number, rows[~waiting])
        return found

    def _take(self, selected: _Pass, slots: Places) -> None:
        """Give row numbers to instalments, each of another report; a slot below 0 is a new report."""
        new = slots < 0
        if new.any():
            fresh = selected.only(new)
            slots[new] = self._ids.add(fresh.ids, fresh.id_sums)
            self._leaves += np.bincount(_leaves(fresh.ids), minlength=SET_LEAVES)
            self._certificates.add(fresh.certificates, fresh.certificate_sums)
        for round_number in np.flatnonzero(np.bincount(selected.rounds)).tolist():
            here = np.flatnonzero(selected.rounds == round_number)
            self._number(round_number, slots.take(here))
            self._fresh_digests.setdefault(round_number, []).append(selected.digests.take(here, axis=0))

    def _number(self, round_number: int, slots: Places) -> None:
        column = self._rows_for(round_number)
        first = self.row_count(round_number)
        column[slots] = np.arange(first, first + len(slots), dtype=np.uint32)
        self._row_counts[round_number] = first + len(slots)
        self._taken.append((round_number, slots))

    def _rows_for(self, round_number: int) -> Rows:
        """Return the column of a round, with room for every report."""
        column = self._rows.get(round_number, np.empty(0, dtype=np.uint32))
        if len(self) > len(column):
            grown = np.full(int(_GROWTH * len(self)), NO_ROW, dtype=np.uint32)
            grown[: len(column)] = column
            column = self._rows[round_number] = grown
        return column

    def load(self, ids: bytes, certificates: bytes, round_number: int) -> bool:
        """Take the next rows of a log that is read again; False if no log of one aggregator can hold them."""
        keys, owners = self._ids.words(ids), self._certificates.words(certificates)
        key_sums, owner_sums = self._ids.sums(keys), self._certificates.sums(owners)
        slots = self._ids.find(keys, key_sums)
        rounds = np.full(len(slots), round_number, dtype=np.uint8)
        fits = (slots == self._certificates.find(owners, owner_sums)).all()
        if not fits or (self._rows_of(slots, rounds) != NO_ROW).any():
            return False
        new = slots < 0
        if len(np.unique(slots[~new])) < np.count_nonzero(~new):
            return False
        fresh, fresh_sums, fresh_owners, fresh_owner_sums = keys[new], key_sums[new], owners[new], owner_sums[new]
        slots[new] = self._ids.add(fresh, fresh_sums)
        self._leaves += np.bincount(_leaves(fresh), minlength=SET_LEAVES)
        self._certificates.add(fresh_owners, fresh_owner_sums)
        if self._ids.has_repeats(fresh, fresh_sums, slots[new]):
            return False
        if self._certificates.has_repeats(fresh_owners, fresh_owner_sums, slots[new]):
            return False
        self._number(round_number, slots)
        self.keep()
        return True

    def join(self, ids: bytes, certificates: bytes, round_number: int) -> Copies:
        """Take the next rows of a round from another lane, and pass over those that are copies of what is held.

        A device that comes with a second report is left out, and the second is not taken. Returns the copies: whose
        they are, and the row that is held and the one that came, whose digests are for the caller to compare.
        """
        keys, owners = self._ids.words(ids), self._certificates.words(certificates)
        key_sums, owner_sums = self._ids.sums(keys), self._certificates.sums(owners)
        first_row, left = self.row_count(round_number), np.arange(len(keys))
        copies: list[Copies] = []
        while len(left):
            slots = self._ids.find(keys[left], key_sums[left])
            owned = self._certificates.find(owners[left], owner_sums[left])
            second = slots != owned
            self.leave_out(np.concatenate((slots[second & (slots >= 0)], owned[second & (owned >= 0)])))
            held = self._rows_of(slots, np.full(len(left), round_number))
            copy = ~second & (held != NO_ROW)
            copies.append(Copies(slots[copy], held[copy].astype(np.int64), first_row + left[copy]))
            rest = np.flatnonzero(~second & ~copy)
            first = self._ids.first_of_each(key_sums[left[rest]]) & self._certificates.first_of_each(
                owner_sums[left[rest]]
            )
            taken, places = slots[rest[first]], left[rest[first]]
            new = taken < 0
            fresh = places[new]
            taken[new] = self._ids.add(keys[fresh], key_sums[fresh])
            self._certificates.add(owners[fresh], owner_sums[fresh])
            self._leaves += np.bincount(_leaves(keys[fresh]), minlength=SET_LEAVES)
            self._rows_for(round_number)[taken] = (first_row + places).astype(np.uint32)
            left = left[rest[~first]]
        self._row_counts[round_number] = first_row + len(keys)
        self.keep()
        return Copies(*(np.concatenate(column) for column in zip(*copies, strict=True)))

    def leave_out(self, slots: Places) -> None:
        """Let reports be neither complete nor incomplete from now on."""
        if len(slots):
            self._out.append(slots)

    @property
    def left_out_count(self) -> int:
        """How many reports are left out."""
        return int(np.count_nonzero(self._is_out()))

    def limit(self) -> int:
        """Leave out what is complete and more than a leaf or a set may have, the last first; return how much that is.

        Each intake keeps to the limits by itself, and together they may have taken more.
        """
        rounds = sorted(self._rows)
        if not rounds or (len(self) <= MAX_REPORTS_PER_WINDOW and (self._leaves <= MAX_REPORTS_PER_LEAF).all()):
            return 0
        slots = np.flatnonzero(self._is_whole())
        slots = slots[np.argsort(self._column(rounds[0])[slots])]
        leaves = _leaves(self._ids.keys[slots])
        beyond = np.zeros(len(slots), dtype=np.bool_)
        for leaf in np.flatnonzero(np.bincount(leaves, minlength=SET_LEAVES) > MAX_REPORTS_PER_LEAF).tolist():
            beyond[np.flatnonzero(leaves == leaf)[MAX_REPORTS_PER_LEAF:]] = True
        beyond[np.flatnonzero(~beyond)[MAX_REPORTS_PER_WINDOW:]] = True
        self.leave_out(slots[beyond])
        return int(np.count_nonzero(beyond))

    def keep(self) -> None:
        """Make what was taken last lasting: it is durable and cannot be dropped any more."""
        self._kept_reports = len(self)
        self._taken.clear()
        self._fresh_digests.clear()

    def drop(self) -> None:
        """Forget everything since `keep`."""
        if not self._taken:
            return
        for round_number, slots in self._taken:
            self._rows[round_number][slots] = NO_ROW
            self._row_counts[round_number] -= len(slots)
        for round_number in [one for one, count in self._row_counts.items() if not count]:
            del self._rows[round_number], self._row_counts[round_number]  # As if none of it had ever come.
        self._leaves -= np.bincount(_leaves(self._ids.keys[self._kept_reports :]), minlength=SET_LEAVES)
        self._ids.drop(self._kept_reports)
        self._certificates.drop(self._kept_reports)
        self.keep()

    def complete(self) -> CompleteRows:
        """Return the complete reports, by the row of their first round: the same live and when the log is read again.

        Not in the order of arrival: a group of both rounds is read again round by round.
        """
        rounds = tuple(sorted(self._rows))
        if not rounds:
            return CompleteRows.none()
        slots = np.flatnonzero(self._is_whole())
        slots = slots[np.argsort(self._column(rounds[0])[slots])]
        rows = np.empty((len(slots), len(rounds)), dtype=np.uint32)
        for at, number in enumerate(rounds):
            rows[:, at] = self._column(number)[slots]
        return CompleteRows(ids=self._ids.keys[slots].tobytes(), rounds=rounds, rows=rows)

    def of_certificates(self, certificates: bytes) -> bytes:
        """Return the ids of the reports under these certificates, complete or not, joined."""
        words = self._certificates.words(certificates)
        slots = self._certificates.find(words, self._certificates.sums(words))
        return self._ids.keys[slots[slots >= 0]].tobytes()

    def by_id(self, size: int) -> Iterator[KnownReports]:
        """Yield all reports in the order of their ids, `size` at a time."""
        order = ReportIds(self._ids.keys.tobytes()).order
        rounds = tuple(sorted(self._rows))
        for start in range(0, len(order), size):
            slots = order[start : start + size]
            yield KnownReports(
                self._ids.keys[slots].view(np.uint8),
                self._certificates.keys[slots].view(np.uint8),
                {number: self._column(number)[slots] for number in rounds},
            )

    @property
    def held_count(self) -> int:
        """How many instalments there are, each once."""
        return sum(int(np.count_nonzero(self._column(number) != NO_ROW)) for number in self._rows)

    @property
    def incomplete(self) -> int:
        """How many reports lack an instalment, of those that are not left out."""
        return len(self) - int(np.count_nonzero(self._is_whole())) - self.left_out_count

    def _is_out(self) -> Mask:
        out = np.zeros(len(self), dtype=np.bool_)
        for slots in self._out:
            out[slots] = True
        return out

    def _is_whole(self) -> Mask:
        """Return by slot which reports are complete."""
        instalments = np.zeros(len(self), dtype=np.uint8)
        for number in self._rows:
            instalments += self._column(number) != NO_ROW
        whole: Mask = instalments >= self.expected
        return whole & ~self._is_out() if self._out else whole

    def _column(self, round_number: int) -> Rows:
        """Return by slot the row numbers of a round."""
        column = self._rows[round_number][: len(self)]
        missing = len(self) - len(column)
        return column if not missing else np.append(column, np.full(missing, NO_ROW, dtype=np.uint32))


def _leaves(ids: Words) -> NDArray[np.uint8]:
    return ids.view(np.uint8)[:, 0]
