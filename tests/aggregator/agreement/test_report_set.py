"""Which set a helper seals: the leader's, if all of it was accepted here; ids travel only where the leaves differ."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_aggregator.agreement.report_set import BatchVerdicts, OwnSet, _NamesMissing
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.roles.helper import Helper
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.row_types import ReportVerdict
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.ids import AggregatorId, WindowId, new_report_id
from fleetcount_protocol.messages import SealSet, SetAgreed, SetDiffers, WindowState
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window
from hypothesis import given
from hypothesis import strategies as st

from tests.support.aggregators import Network, answer_all, device_digest
from tests.support.denials import denials_of

WINDOW = WindowId(bytes(range(32)))
HELD = [bytes([leaf, 0, number, *[7] * 13]) for leaf in (0, 1, 255) for number in range(4)]
"""Twelve reports in three leaves."""
ACCEPTED, VERIFIED = ReportVerdict.ACCEPTED, ReportVerdict.VERIFIED


def standing(ids: list[bytes], accepted: list[bytes]) -> BatchVerdicts:
    """What an aggregator holds, in no order; what it has not accepted is verified."""
    verdicts = np.array([ACCEPTED if one in accepted else VERIFIED for one in ids], dtype=np.uint8)
    digests = np.frombuffer(b"".join(one + one for one in ids), dtype=np.uint8).reshape(-1, 32)
    return BatchVerdicts(ReportIds(b"".join(ids)), verdicts, digests)


def own(ids: list[bytes]) -> OwnSet:
    """The set of these reports at a leader that holds nothing else."""
    return OwnSet.of(WINDOW, standing(ids, ids), np.ones(len(ids), dtype=np.bool_))


def sealed(helper: BatchVerdicts, leader: OwnSet) -> tuple[bytes, list[int]]:
    """Return the ids that a helper seals with an honest leader, and the leaves it was told the names of."""
    request = SealSet(window_id=WINDOW, leaf_digests=leader.leaves)
    try:
        return OwnSet.agreed(WINDOW, helper, request).ids, []
    except _NamesMissing as missing:
        named = leader.named(missing.leaves)
        request = SealSet(window_id=WINDOW, leaf_digests=leader.leaves, accepted=named)
        return OwnSet.agreed(WINDOW, helper, request).ids, sorted(set(named[::16]))


SUBSETS = st.sets(st.sampled_from(HELD)).map(sorted)


@given(SUBSETS, SUBSETS)
def test_a_helper_seals_the_leader_s_set_iff_it_has_accepted_all_of_it(mine: list[bytes], theirs: list[bytes]) -> None:
    helper, leader = standing(HELD[::-1], mine), own(theirs)
    if not set(theirs) <= set(mine):
        with pytest.raises(PeerRefusalError, match="disagrees"):
            sealed(helper, leader)
        return

    ids, told = sealed(helper, leader)

    assert ids == b"".join(theirs)
    assert told == [
        leaf
        for leaf in (0, 1, 255)
        if {one for one in mine if one[0] == leaf} != (here := {one for one in theirs if one[0] == leaf}) and here
    ]


@given(SUBSETS)
def test_equal_sets_take_no_names_however_many_are_held(ids: list[bytes]) -> None:
    assert sealed(standing(HELD, ids), own(ids)) == (b"".join(ids), [])


def refused(helper: BatchVerdicts, leader: OwnSet, *named: bytes) -> bool:
    request = SealSet(window_id=WINDOW, leaf_digests=leader.leaves, accepted=b"".join(named))
    with pytest.raises(PeerRefusalError, match="disagrees"):
        OwnSet.agreed(WINDOW, helper, request)
    return True


def test_names_that_were_not_asked_for_are_refused() -> None:
    leader = own(HELD[:3] + HELD[4:8])  # Of leaf 0 one fewer than here, of leaf 1 the same, of leaf 255 none.
    helper = standing(HELD, HELD)

    assert sealed(helper, leader) == (b"".join(HELD[:3] + HELD[4:8]), [0])
    assert refused(helper, leader, *HELD[:3], HELD[4])
    assert refused(helper, leader, *HELD[:3], *HELD[4:8])
    assert refused(helper, leader, *HELD[:3], HELD[8])
    assert refused(helper, own(HELD), *HELD), "names where all leaves are the same"


def test_names_that_do_not_make_the_leaf_are_refused() -> None:
    leader, helper = own(HELD[:3]), standing(HELD, HELD[:4])

    for named in (HELD[:2], HELD[:4], HELD[1:4], HELD[2::-1], [*HELD[:3], HELD[2]], [*HELD[:3], b"\0" * 16]):
        assert refused(helper, leader, *named)


def test_a_report_that_is_not_accepted_here_is_in_no_set_whatever_the_leader_names() -> None:
    """Its public share is here, so that the digests would be right."""
    helper = standing(HELD, HELD[:1] + HELD[2:])

    assert refused(helper, own(HELD[:3]), *HELD[:3])
    assert refused(helper, own(HELD[:2]), *HELD[:2])


def test_another_public_share_makes_another_set() -> None:
    helper = standing(HELD, HELD)
    helper.share_digests.flags.writeable = False
    other = helper.share_digests.copy()
    other[0] ^= 1

    assert refused(BatchVerdicts(helper.ids, helper.verdicts, other), own(HELD), *HELD[:4])


def companions(window: Window) -> list[int]:
    """Return two devices whose reports are in one leaf, and one of another; no two of 80 meet once in 2^18 runs."""
    leaves = [new_report_id(window.window_id, device_digest(number), SystemRandom())[0] for number in range(80)]
    one, other = next((a, b) for a, b in combinations(range(80), 2) if leaves[a] == leaves[b])
    return [one, other, next(number for number, leaf in enumerate(leaves) if leaf != leaves[one])]


@pytest.mark.parametrize("crash", ["", "helper.after_seal_store"])
async def test_a_set_smaller_than_the_helpers_crosses_by_its_leaves_and_the_names_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """The leader learns at the end of the batches that a device is denied; a second one of its leaf is not."""
    network = Network(3)
    await network.start_all()
    window = await network.ask(values=4)
    denied, kept, _ = numbers = companions(window)
    names = [one.nonce for one in await answer_all(network, window, [(0, 1), (2, 2), (0, 3)], numbers=numbers)]
    said: list[tuple[AggregatorId, bytes, object]] = []

    def revoke(_: AggregatorId, __: AggregatorId, name: str) -> None:
        if name == "finish_batch":
            network.core(0).context.host.denials = denials_of(tmp_path / "deny-list", denied)

    async def seal_set(self: Helper, caller: AggregatorId, request: SealSet, real: Any = Helper.seal_set) -> Any:
        answer = await real(self, caller, request)
        said.append((self._context.host.aggregator_id, request.accepted, type(answer)))
        return answer

    network.after = revoke
    monkeypatch.setattr(Helper, "seal_set", seal_set)
    if crash:
        await network.stop(1)
        await network.start(1, crash)

    await network.run_to_the_end(window)

    assert [network.core(seat).context.windows.states[window.window_id] for seat in range(3)] == [
        WindowState.RELEASED
    ] * 3
    record = decode_record((await network.core(0).service.release(window.window_id)).record)
    assert [cell.raw for cell in record.cells] == [0, 0, 1, 0]
    asked_and_named = [(b"", SetDiffers), (names[1], SetAgreed)]
    of_gamma = [(accepted, answer) for helper, accepted, answer in said if helper == "gamma"]
    assert of_gamma == asked_and_named, "nothing but the name of the other report in that leaf"
    if crash:
        assert ("beta", b"", SetAgreed) in said, "what was stored before the crash is the answer to the leaves alone"
    assert kept != denied
    await network.stop_all()
