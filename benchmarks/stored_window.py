"""How a window comes into an aggregator's store at any time and in any state, as its own rules would store it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Host, Limits, OwnIdentity
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.memory.installed import InstalledWindow, window_row
from fleetcount_aggregator.peers import Peer
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_aggregator.storage.row_types import DecidedWindow
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.workers import Workers
from fleetcount_aggregator.windows.question_install import adopt_question
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.clock import SystemClock
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import SignedQuestion
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.signing import TrustedAggregator
from one_window import SEED


def identity_of(aggregators: Sequence[Aggregator], position: int, key: Ed25519PrivateKey) -> OwnIdentity:
    """Return who an aggregator is, and that it trusts itself and the others under the keys they are described with."""
    own = aggregators[position]
    trusted: dict[AggregatorId, TrustedAggregator] = {
        one.aggregator_id: TrustedAggregator(
            aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key
        )
        for one in aggregators
    }
    return OwnIdentity(
        aggregator_id=own.aggregator_id,
        operator=own.operator,
        deployment="bench",
        signing_key=key,
        trusted=trusted,
        device_ca=(),
    )


def context_over(
    store: Store,
    identity: OwnIdentity,
    workers: Workers,
    *,
    limits: Limits | None = None,
    peers: Mapping[AggregatorId, Peer] | None = None,
) -> Context:
    """Return what the rules of an aggregator need, over a store."""
    host = Host(
        identity=identity,
        keys=KeyRing({1: HpkeKeyPair.generate(1)}),
        clock=SystemClock(),
        limits=limits or Limits(),
        noise=SystemNoise(SystemRandom()),
    )
    return Context.over(host, store, workers, peers)


async def put(context: Context, signed: SignedQuestion, state: WindowState) -> InstalledWindow:
    """Store a question of one window and that window in a state, also where its time is over."""
    await adopt_question(context.questions, signed, SEED)
    question_id = signed.question.question_id
    window = context.questions[question_id].window(0)
    row = replace(await window_row(context.store, window, context.host.now()), state=state)
    await context.store.decide_windows(
        [DecidedWindow(question_id=question_id, index=0, window_id=window.window_id)], row
    )
    return window
