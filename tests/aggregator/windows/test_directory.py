"""The directory of an operator's files: what is taken up, what waits, what is refused, and where the seed goes."""

import os
from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.moment import Skew
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.windows.directory import QuestionDirectory
from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.messages import InstallQuestion
from fleetcount_protocol.question.question import encode_signed_question

from tests.support.aggregators import Network


async def started(directory: Path | None = None, **limits: int) -> Network:
    network = Network(2, directory=directory, limits=Limits(**{"smallest_min_batch_size": 2, **limits}))  # type: ignore[arg-type]  # the test names fields of Limits.
    await network.start_all()
    return network


def drop(directory: Path, name: str, data: bytes, seed: bytes | None, mode: int = 0o600) -> None:
    if seed is not None:
        (directory / f"{name}.seed").write_bytes(seed)
        (directory / f"{name}.seed").chmod(mode)
    (directory / f"{name}.question").write_bytes(data)


async def test_a_dropped_question_is_taken_up_once(tmp_path: Path) -> None:
    network = await started()
    signed, seed = network.question()
    drop(tmp_path, "q", encode_signed_question(signed), seed)
    directory = QuestionDirectory(network.core(0).context, tmp_path)

    for _ in range(3):
        await directory.poll()

    assert list(network.core(0).context.questions) == [signed.question.question_id]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.question"]


@pytest.mark.parametrize(
    ("data", "more", "mode", "said"),
    [
        (b"", b"", 0o600, "ends"),
        (b"junk" * 100, b"", 0o600, "does not begin"),
        (b"x" * 2_000_000, b"", 0o600, "more than"),
        (None, b"", 0o644, "mode 0644"),
        (None, b"x", 0o600, "33 bytes"),
        (None, None, 0o600, "seed of verify keys"),
    ],
)
async def test_a_question_that_cannot_be_used_is_refused_beside_its_file(
    tmp_path: Path, data: bytes | None, more: bytes | None, mode: int, said: str
) -> None:
    network = await started()
    signed, seed = network.question()
    given = bytes(32) if more is None else seed + more
    drop(tmp_path, "q", encode_signed_question(signed) if data is None else data, given, mode)

    await QuestionDirectory(network.core(0).context, tmp_path).poll()

    assert said in (tmp_path / "q.refused").read_text()
    assert not network.core(0).context.questions


async def test_a_question_waits_for_its_seed_and_is_refused_in_the_end(tmp_path: Path) -> None:
    network = await started()
    (late, seed), (never, _) = network.question(), network.question(signal="Vehicle.Speed")
    drop(tmp_path, "late", encode_signed_question(late), seed=None)
    drop(tmp_path, "never", encode_signed_question(never), seed=None)
    directory = QuestionDirectory(network.core(0).context, tmp_path)
    for _ in range(5):
        await directory.poll()
    drop(tmp_path, "late", encode_signed_question(late), seed)

    for _ in range(10):
        await directory.poll()

    assert list(network.core(0).context.questions) == [late.question.question_id]
    assert "never.seed" in (tmp_path / "never.refused").read_text()


async def test_a_question_dropped_at_a_helper_is_refused(tmp_path: Path) -> None:
    network = await started()
    signed, seed = network.question()
    drop(tmp_path, "q", encode_signed_question(signed), seed)

    await QuestionDirectory(network.core(1).context, tmp_path).poll()

    assert "leader is 'alpha'" in (tmp_path / "q.refused").read_text()


async def test_the_seed_s_file_goes_when_the_store_has_it_also_after_a_crash_in_between(tmp_path: Path) -> None:
    drops = tmp_path / "questions"
    drops.mkdir()
    network = await started(tmp_path)
    signed, seed = network.question()
    drop(drops, "one", encode_signed_question(signed), seed)
    await QuestionDirectory(network.core(0).context, drops).poll()
    after_install = sorted(path.name for path in drops.iterdir())
    drop(drops, "one", encode_signed_question(signed), seed)
    await network.stop(0)
    await network.start(0)
    await QuestionDirectory(network.core(0).context, drops).poll()

    assert after_install == ["one.question"]
    assert sorted(path.name for path in drops.rglob("*")) == ["one.question"]
    assert list(network.core(0).context.questions) == [signed.question.question_id]
    await network.stop_all()


async def test_the_seed_of_a_question_that_is_refused_stays_for_another_try(tmp_path: Path) -> None:
    network = await started(smallest_min_batch_size=1000)
    signed, seed = network.question()
    drop(tmp_path, "one", encode_signed_question(signed), seed)

    await QuestionDirectory(network.core(0).context, tmp_path).poll()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.question", "one.refused", "one.seed"]


async def test_what_was_refused_is_not_taken_up_by_the_next_start_but_when_it_is_dropped_again(tmp_path: Path) -> None:
    """The operator was told that it is refused: no restart, when the budget is free again, may ask it after all."""
    network = await started()
    (signed, seed), (late, late_seed) = network.question(), network.question(signal="Vehicle.Speed")
    for name, question, beside in (("q", signed, seed), ("late", late, late_seed)):
        drop(tmp_path, name, encode_signed_question(question), beside)
        (tmp_path / f"{name}.refused").write_text("of the process before this one\n")
    os.utime(tmp_path / "late.refused", ns=(0, 0))
    directory = QuestionDirectory(network.core(0).context, tmp_path)
    await directory.poll()
    taken = list(network.core(0).context.questions)
    refused = sorted(path.name for path in tmp_path.glob("*.refused"))

    changed = (tmp_path / "q.refused").stat().st_mtime_ns + 1
    os.utime(tmp_path / "q.question", ns=(changed, changed))
    await directory.poll()

    assert (taken, refused) == ([late.question.question_id], ["q.refused"])
    assert signed.question.question_id in network.core(0).context.questions
    assert not (tmp_path / "q.refused").exists()


async def test_a_question_waits_until_clocks_agree_and_is_taken_up_then(tmp_path: Path) -> None:
    network = await started()
    signed, seed = network.question()
    drop(tmp_path, "q", encode_signed_question(signed), seed)
    context = network.core(0).context
    peer = signed.question.aggregators[1].aggregator_id
    directory = QuestionDirectory(context, tmp_path)

    context.host.moments.skews[peer] = Skew(3600, 0.1)
    await directory.poll()
    await directory.poll()
    names = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(PeerRefusalError) as refusal:
        await network.core(1).helper.install_question(peer, InstallQuestion(signed=signed, seed=seed, orders=()))
    other = network.core(1).context.host.moments
    other.skews[context.host.aggregator_id] = Skew(-3600, 0.1)
    with pytest.raises(PeerRefusalError) as waits:
        await network.core(1).helper.install_question(
            context.host.aggregator_id, InstallQuestion(signed=signed, seed=seed, orders=())
        )
    context.host.moments.skews[peer] = Skew(1, 0.1)
    await directory.poll()

    assert names == ["q.question", "q.seed"]
    assert (refusal.value.problem, waits.value.problem) == (PeerProblem.NOT_LEADER, PeerProblem.BUSY)
    assert list(context.questions) == [signed.question.question_id]
