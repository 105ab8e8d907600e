"""Two starts of one identity: the older is not answered, is shown the newer, and stops; and clocks that differ."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.greetings import Greetings, SupersededError
from fleetcount_aggregator.host.moment import Moments, Skew
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.process.serving import Core
from fleetcount_aggregator.storage.data_keys import at_rest_key_of
from fleetcount_aggregator.storage.rows import note_epoch, read_epochs
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.windows.question_install import check_question_here
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.greetings import (
    Epoch,
    Greeting,
    Meeting,
    decode_epoch,
    decode_greeting,
    sign_epoch,
    sign_greeting,
)
from fleetcount_protocol.errors import PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId, WindowId

from tests.support.aggregators import START, AheadClock, Network, Seat
from tests.support.stores import copied

ALPHA, BETA, GAMMA = AggregatorId("alpha"), AggregatorId("beta"), AggregatorId("gamma")
NOBODY = WindowId(bytes(32))


async def greeting(count: int = 2) -> Network:
    network = Network(count)
    network.greets = True
    await network.start_all()
    return network


async def twin(network: Network, position: int) -> Core:
    """Start a second process of an aggregator on a copy of its store; return the first, which goes on."""
    seat, first = network.seats[position], network.core(position)
    seat.give_store(copied(seat.store_path))
    await network.start(position)
    return first


async def ask(core: Core, peer: AggregatorId) -> PeerProblem:
    """Let an aggregator call another about a window that nobody has."""
    with pytest.raises(PeerRefusalError) as caught:
        await core.context.peers[peer].status(NOBODY)
    return caught.value.problem


def seated(network: Network, position: int, core: Core) -> None:
    network.seats[position].core = core


async def begun(context: Context, seat: Seat) -> None:
    await context.peers.greetings.begin(seat.signing_key, SystemRandom())


async def test_the_older_of_two_is_refused_and_told_and_does_not_start_again() -> None:
    network = await greeting()
    assert await ask(network.core(1), ALPHA) is PeerProblem.UNKNOWN_WINDOW
    older = await twin(network, 1)
    newer = network.core(1)
    assert await ask(newer, ALPHA) is PeerProblem.UNKNOWN_WINDOW

    seated(network, 1, older)  # Its calls leave from the same seat.
    assert await ask(older, ALPHA) is PeerProblem.STALE_EPOCH

    assert older.context.peers.greetings.superseded.is_set()
    older.context.peers.greetings.end()  # As a coordinator of several processes does that is one no more.
    with pytest.raises(SupersededError, match=r"^beta has been started elsewhere: peers know epoch 2 .* epoch 1"):
        older.context.peers.greetings.check()
    older.context.peers.greetings.superseded.clear()  # As in a further process on its store.
    with pytest.raises(SupersededError, match="--restored"):
        await begun(older.context, network.seats[1])
    assert older.context.peers.greetings.superseded.is_set(), "which ends a process that was elected after its start"
    with pytest.raises(SupersededError, match="epoch 1"):
        older.context.peers.greetings.check()
    newer.context.peers.greetings.check()
    seated(network, 1, newer)
    assert await ask(newer, ALPHA) is PeerProblem.UNKNOWN_WINDOW


async def test_of_two_starts_that_call_at_once_the_newer_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    network = await greeting()
    older = network.core(1)
    await twin(network, 1)
    newer, alpha = network.core(1), network.core(0).context
    said = [core.context.peers.greetings.say(ALPHA) for core in (older, newer)]
    write, begun_first, go_on = alpha.store.write, asyncio.Event(), asyncio.Event()

    async def late(work: Any, *args: Any) -> Any:
        if work is note_epoch and not begun_first.is_set():
            begun_first.set()
            await go_on.wait()
        return await write(work, *args)

    monkeypatch.setattr(alpha.store, "write", late)
    first = asyncio.ensure_future(alpha.peers.greetings.hear_call(BETA, said[0]))
    await begun_first.wait()
    second = asyncio.ensure_future(alpha.peers.greetings.hear_call(BETA, said[1]))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, second)

    assert decode_epoch((await alpha.store.read(read_epochs))[BETA]).number == 2
    with pytest.raises(PeerRefusalError, match="stale_epoch"):
        await alpha.peers.greetings.hear_call(BETA, said[0])


async def test_the_older_is_not_listened_to_and_learns_it_from_the_next_call() -> None:
    """Peers still reach the older one at its address: what it answers counts for nothing, also its refusals."""
    network = await greeting()
    older = await twin(network, 1)
    assert await ask(network.core(1), ALPHA) is PeerProblem.UNKNOWN_WINDOW

    seated(network, 1, older)
    with pytest.raises(PeerUnreachableError, match="beta answers with a greeting that is stale_epoch"):
        await network.core(0).context.peers[BETA].status(NOBODY)

    assert older.context.peers.greetings.superseded.is_set()
    assert not network.core(0).context.peers.greetings.superseded.is_set()


async def test_a_later_process_on_the_same_store_is_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes over one database follow each other as coordinator: the earlier one is not answered, and lives on."""
    network = await greeting()
    earlier = network.core(1)
    monkeypatch.setattr(network.seats[1], "open_store", lambda: earlier.context.store)
    await network.start(1)
    assert await ask(network.core(1), ALPHA) is PeerProblem.UNKNOWN_WINDOW
    seated(network, 1, earlier)

    assert await ask(earlier, ALPHA) is PeerProblem.STALE_EPOCH
    assert not earlier.context.peers.greetings.superseded.is_set()
    earlier.context.peers.greetings.end()
    assert await ask(earlier, ALPHA) is PeerProblem.UNKNOWN_WINDOW


@pytest.mark.parametrize("position", [0, 1])
async def test_what_a_peer_has_seen_outlives_its_restarts(position: int) -> None:
    network = await greeting()
    older = await twin(network, position)
    other = 1 - position
    assert await ask(network.core(position), network.seats[other].aggregator_id) is PeerProblem.UNKNOWN_WINDOW

    await network.start(other)
    seated(network, position, older)

    assert await ask(older, network.seats[other].aggregator_id) is PeerProblem.STALE_EPOCH


async def test_of_two_starts_with_one_number_exactly_one_goes_on() -> None:
    network = await greeting()
    seat, first = network.seats[1], network.core(1)
    await network.start(0)
    seat.give_store()
    await network.start(1)
    second = network.core(1)
    tried = []
    for core in (first, second, first):
        seated(network, 1, core)
        tried.append(await ask(core, ALPHA))

    assert sorted(one.context.peers.greetings.superseded.is_set() for one in (first, second)) == [False, True]
    assert tried[-2:] in (
        [PeerProblem.UNKNOWN_WINDOW, PeerProblem.STALE_EPOCH],
        [PeerProblem.STALE_EPOCH, PeerProblem.UNKNOWN_WINDOW],
    )


async def test_a_restored_copy_goes_on_above_what_its_peers_know() -> None:
    network = await greeting(3)
    for _ in range(5):
        await network.start(1)
    assert await ask(network.core(1), ALPHA) is PeerProblem.UNKNOWN_WINDOW
    network.restored = True
    network.seats[1].give_store()
    await network.start(1)
    restored = network.core(1)

    assert await ask(restored, ALPHA) is PeerProblem.STALE_EPOCH
    assert await ask(restored, ALPHA) is PeerProblem.UNKNOWN_WINDOW
    assert await ask(restored, AggregatorId("gamma")) is PeerProblem.UNKNOWN_WINDOW
    own = decode_greeting(restored.context.peers.greetings.say(ALPHA)).epoch
    assert own.number == 7
    assert decode_epoch((await restored.context.store.read(read_epochs))[""]) == own
    restored.context.peers.greetings.check()


async def restored_copy(network: Network) -> Core:
    """Start a process of beta with --restored on a store that remembers nothing."""
    network.restored = True
    network.seats[1].give_store()
    return await network.start(1)


@pytest.mark.parametrize("met", [False, True])
async def test_of_two_restored_copies_one_ends(met: bool) -> None:
    """The later one, if the earlier was heard by all before; else whichever is heard last."""
    network = await greeting(3)
    earlier = await restored_copy(network)
    for peer in (ALPHA, ALPHA, GAMMA) if met else ():
        assert await ask(earlier, peer) in (PeerProblem.STALE_EPOCH, PeerProblem.UNKNOWN_WINDOW)
    later = await restored_copy(network)
    both = (earlier, later)
    for core, peer in [(core, peer) for peer in (ALPHA, GAMMA) * 3 for core in both]:
        seated(network, 1, core)
        await ask(core, peer)
        if any(one.context.peers.greetings.superseded.is_set() for one in both):
            break

    assert [one.context.peers.greetings.superseded.is_set() for one in both] == [True, False]
    with pytest.raises(SupersededError, match="started elsewhere"):
        earlier.context.peers.greetings.check()
    seated(network, 1, later)
    for peer in (ALPHA, GAMMA):
        assert await ask(later, peer) is PeerProblem.UNKNOWN_WINDOW


async def test_a_restored_copy_stops_for_no_older_process_that_a_peer_has_not_told_of_yet() -> None:
    network = await greeting(3)
    for _ in range(5):
        await network.start(1)
    older = network.core(1)
    assert await ask(older, GAMMA) is PeerProblem.UNKNOWN_WINDOW
    restored = await restored_copy(network)
    assert await ask(restored, ALPHA) is PeerProblem.UNKNOWN_WINDOW
    seated(network, 1, older)
    assert await ask(older, ALPHA) is PeerProblem.UNKNOWN_WINDOW

    seated(network, 1, restored)
    assert await ask(restored, ALPHA) is PeerProblem.STALE_EPOCH
    assert [await ask(restored, peer) for peer in (ALPHA, GAMMA)] == [PeerProblem.UNKNOWN_WINDOW] * 2

    restored.context.peers.greetings.check()
    seated(network, 1, older)
    assert await ask(older, GAMMA) is PeerProblem.STALE_EPOCH
    assert older.context.peers.greetings.superseded.is_set()


def told(network: Network, position: int, **changed: Any) -> bytes:
    """Return what an aggregator says to beta with a call, changed and signed again."""
    peer = network.seats[position].aggregator_id
    said = decode_greeting(network.core(position).context.peers.greetings.say(BETA))
    meeting = Meeting(caller=peer, callee=BETA, tls_key=b"")
    key = network.seats[position].signing_key
    return sign_greeting(replace(said, **changed), meeting, key, is_answer=False).encode()


async def test_two_peers_that_show_a_newer_epoch_at_once_are_one_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    network = await greeting(3)
    beta = (await restored_copy(network)).context
    shown = sign_epoch(BETA, 40, bytes(8), network.seats[1].signing_key)
    said = {peer: told(network, seat, known=shown) for seat, peer in ((0, ALPHA), (2, GAMMA))}
    begun_epochs: list[Epoch] = []
    write = beta.store.write

    async def slow(work: Any, *args: Any) -> Any:
        await asyncio.sleep(0)
        if work is note_epoch and not args[0]:
            begun_epochs.append(decode_epoch(args[1]))
        return await write(work, *args)

    monkeypatch.setattr(beta.store, "write", slow)
    await asyncio.gather(*(beta.peers.greetings.hear_call(peer, one) for peer, one in said.items()))

    assert [one.number for one in begun_epochs] == [41]
    assert decode_greeting(beta.peers.greetings.say(ALPHA)).epoch == begun_epochs[0]


@pytest.mark.parametrize("own_key", [False, True])
async def test_nobody_can_make_up_a_newer_start_of_another(own_key: bool) -> None:
    network = await greeting()
    beta = network.core(1).context.peers.greetings
    forger = network.seats[0].signing_key if own_key else Ed25519PrivateKey.generate()
    shown = sign_epoch(BETA, 1_000, bytes(8), forger)

    with pytest.raises(PeerRefusalError) as caught:
        await beta.hear_call(ALPHA, told(network, 0, known=shown))

    assert caught.value.problem is PeerProblem.MALFORMED
    assert not beta.superseded.is_set()


async def test_an_epoch_of_another_aggregator_or_what_is_none_is_refused() -> None:
    network = await greeting()
    beta = network.core(1).context.peers.greetings
    assert await ask(network.core(0), BETA) is PeerProblem.UNKNOWN_WINDOW
    own = network.core(0).context.peers.greetings.say(BETA)
    said = [told(network, 0, epoch=decode_greeting(beta.say(ALPHA)).epoch), b"x", own + b"\0"]

    for one in said:
        with pytest.raises(PeerRefusalError) as caught:
            await beta.hear_call(ALPHA, one)
        assert caught.value.problem is PeerProblem.MALFORMED
    await beta.hear_call(ALPHA, b"")  # A command of alpha's operator.


OTHER_KEY = b"yek"


@pytest.mark.parametrize("changed", ["nothing", "caller", "callee", "TLS key", "signer", "time", "challenge", "side"])
async def test_a_greeting_counts_for_its_call_alone(changed: str) -> None:
    """Of calls and of answers: made by the one who speaks, for this other, this TLS key and this challenge."""
    network = await greeting(3)
    alpha, beta = (network.core(position).context.peers.greetings for position in (0, 1))
    seat = network.seats[0 if changed != "signer" else 2]
    called = alpha.say(BETA, b"key")
    meeting = Meeting(
        caller=GAMMA if changed == "caller" else ALPHA,
        callee=GAMMA if changed == "callee" else BETA,
        tls_key=OTHER_KEY if changed == "TLS key" else b"key",
    )
    call = sign_greeting(decode_greeting(called), meeting, seat.signing_key, is_answer=changed == "side")
    answering = network.seats[1 if changed != "signer" else 2].signing_key
    answer = sign_greeting(decode_greeting(beta.say(ALPHA, b"key", called)), meeting, answering, is_answer=True)
    if changed == "time":
        call, answer = (replace(one, time_ms=one.time_ms + 1) for one in (call, answer))
    if changed == "challenge":
        call = replace(call, challenge=bytes(16))
        answer = decode_greeting(beta.say(ALPHA, b"key", alpha.say(BETA, b"key")))
    if changed == "side":
        answer = decode_greeting(called)

    if changed == "nothing":
        await beta.hear_call(ALPHA, call.encode(), b"key")
        alpha.check_answerer(BETA, answer.encode(), called, b"key")
        await alpha.hear_answer(BETA, answer.encode(), network.clock.now(), called, b"key")
        return
    with pytest.raises(PeerRefusalError) as caught:
        await beta.hear_call(ALPHA, call.encode(), b"key")
    assert caught.value.problem is PeerProblem.MALFORMED
    with pytest.raises(PeerUnreachableError, match="beta does not prove that it has its signing key"):
        alpha.check_answerer(BETA, answer.encode(), called, b"key")
    with pytest.raises(PeerUnreachableError, match="malformed"):
        await alpha.hear_answer(BETA, answer.encode(), network.clock.now(), called, b"key")


async def test_a_superseded_aggregator_answers_nobody() -> None:
    network = await greeting(3)
    older = await twin(network, 1)
    assert await ask(network.core(1), ALPHA) is PeerProblem.UNKNOWN_WINDOW
    seated(network, 1, older)
    assert await ask(older, ALPHA) is PeerProblem.STALE_EPOCH

    with pytest.raises(PeerRefusalError) as caught:
        await network.core(2).context.peers[BETA].status(NOBODY)

    assert caught.value.problem is PeerProblem.BUSY


async def test_epochs_are_durable_go_up_alone_and_damage_is_left_out(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "aggregator.db"

    def opened() -> Store:
        return Store.open(path, bytes(32), at_rest_key_of(key))

    epochs = [sign_epoch(ALPHA, number, bytes(8), key).encode() for number in (2, 9, 3, 256)]
    store = opened()
    for epoch in epochs:
        await store.write(note_epoch, "alpha", epoch)
    await store.write(note_epoch, "beta", b"damaged")
    await store.close()
    store = opened()

    assert await store.read(read_epochs) == {"alpha": epochs[3], "beta": b"damaged"}
    network = await greeting()
    seat = network.seats[0]
    seat.signing_key = key
    trusted = network._identity(seat).trusted
    own = replace(trusted[ALPHA], signing_public_key=key.public_key().public_bytes_raw())
    known = {ALPHA: own, BETA: trusted[BETA]}
    greetings = Greetings(ALPHA, known, store, Moments(network.clock.now, 30))
    greetings.restored = True
    await greetings.begin(key, SystemRandom())
    assert decode_greeting(greetings.say(BETA)).epoch.number == 257
    assert decode_greeting(greetings.say(BETA)).known is None
    await store.close()


# Clocks.


def set_wrong(network: Network, position: int, seconds: float) -> None:
    context = network.core(position).context
    context.host.clock = AheadClock(network.clock, seconds)


@pytest.mark.parametrize("seconds", [31.0, -31.0, 600.0])
async def test_no_window_is_installed_with_a_peer_whose_clock_is_too_far_away(seconds: float) -> None:
    network = await greeting()
    set_wrong(network, 1, seconds)
    assert await ask(network.core(0), BETA) is PeerProblem.UNKNOWN_WINDOW
    assert await ask(network.core(1), ALPHA) is PeerProblem.UNKNOWN_WINDOW

    with pytest.raises(QuestionError, match=rf"clock of beta is \{seconds:+.1f} s .* allowed: 30 s \(\[limits\]"):
        await network.ask()
    signed, seed = network.once(round_one_closes=START + 3600, round_two_closes=START + 7200)
    with pytest.raises(QuestionError, match=rf"clock of alpha is \{-seconds:+.1f} s"):
        check_question_here(network.core(1).context, signed, seed)


async def test_a_small_difference_is_known_and_changes_nothing() -> None:
    network = await greeting()
    told: list[tuple[str, float]] = []
    network.core(0).context.peers.greetings.on_skew = lambda peer, seconds: told.append((peer, seconds))
    set_wrong(network, 1, 12.5)
    assert await ask(network.core(0), BETA) is PeerProblem.UNKNOWN_WINDOW

    await network.ask()

    assert told == [("beta", 12.5)]


async def test_a_slow_answer_says_less_and_never_more() -> None:
    network = await greeting()
    greetings, clock = network.core(0).context.peers.greetings, network.clock
    key = network.seats[1].signing_key
    epoch = sign_epoch(BETA, 5, bytes(8), key)

    async def answered(took: float, said: float) -> Skew:
        asked = clock.now()
        clock.advance(took)
        answer = Greeting(time_ms=int(1000 * said), epoch=epoch)
        meeting = Meeting(caller=ALPHA, callee=BETA, tls_key=b"")
        await greetings.hear_answer(BETA, sign_greeting(answer, meeting, key, is_answer=True).encode(), asked)
        return greetings.skews[BETA]

    assert await answered(100.0, START + 90) == Skew(40.0, 50.0)
    assert greetings.far_clock([BETA]) == ""  # It may have been given at once, or at the end.
    sharp = await answered(0.2, clock.now() + 10)
    assert sharp.seconds == pytest.approx(9.9, abs=0.01)
    assert sharp.give_or_take_s == pytest.approx(0.1)
    assert await answered(60.0, clock.now() + 35) == sharp
    assert (await answered(4.0, clock.now() + 90)).certain_s == pytest.approx(86, abs=0.1)
    assert "beta is +88" in greetings.far_clock([BETA])


async def test_what_is_over_by_this_clock_may_not_be_by_that_of_a_peer() -> None:
    network = await greeting()
    greetings, clock = network.core(0).context.peers.greetings, network.clock
    moment = clock.now() - 100

    greetings.skews.clear()  # As just after a start, before any peer has answered.
    unheard = greetings.not_yet(moment, [ALPHA, BETA])
    clock.advance(5)
    silent = greetings.not_yet(moment, [ALPHA, BETA])
    said = []
    for seconds in (-29.0, -31.0, -200.0, 200.0):
        greetings.skews[BETA] = Skew(seconds, 0.5)
        said.append(greetings.not_yet(moment, [ALPHA, BETA]))

    assert (unheard, silent) == (True, False)
    assert greetings.not_yet(moment, [ALPHA]) is False
    assert said == [False, False, True, False]


def test_the_greater_of_two_epochs_is_the_newer() -> None:
    epochs = [Epoch(number, tag, bytes(64)) for number in (1, 2, 256) for tag in (b"a" * 8, b"b" * 8)]

    assert sorted(epochs, key=lambda one: one.encode()) == sorted(epochs) == epochs
