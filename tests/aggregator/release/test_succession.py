"""An aggregator whose signing key is succeeded while a question run: they go on for who was shown it."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.key_list import verify_key_list
from fleetcount_protocol.release.record import decode_record, verify_record_signatures
from fleetcount_protocol.window.succession import Succession, sign_succession
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network, answer_all


async def asked(shown: bool) -> tuple[Network, Window]:
    """Let a window be answered, and the helper go on under a new key; the leader may know the statement."""
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=2)
    await network.stand()
    await answer_all(network, window, [(0, 1), (2, 2)])
    seat, new = network.seats[1], Ed25519PrivateKey.generate()
    succession = Succession(
        aggregator_id=seat.aggregator_id,
        old_key=seat.aggregator.signing_public_key,
        new_key=new.public_key().public_bytes_raw(),
        not_before=START,
        not_after=START + 10_000,
    )
    statement = sign_succession(succession, seat.signing_key)
    await network.stop_all()
    if shown:
        seat.successions = (statement,)
    await network.start(0)
    seat.signing_key, seat.successions = new, (statement,)
    await network.start(1)
    return network, window


async def test_a_window_and_a_question_that_name_the_old_key_go_on() -> None:
    network, window = await asked(shown=True)

    await network.run_to_the_end(window)

    answer = await network.core(0).service.release(window.window_id)
    assert answer.state is WindowState.RELEASED
    record = decode_record(answer.record)
    verify_record_signatures(record, answer.signatures, network.core(0).context.host.identity.trusted)
    with pytest.raises(SignatureError, match="beta"):
        verify_record_signatures(record, answer.signatures)
    question = max(network.core(0).context.questions.values(), key=lambda one: one.asked.schedule.windows)
    listed = network.core(1).context.questions.key_lists.own()
    described = question.asked.aggregators[1]
    verify_key_list(listed, described, network.core(0).context.host.identity.trusted[described.aggregator_id])


async def test_who_was_not_shown_it_takes_nothing_of_the_new_key() -> None:
    network, window = await asked(shown=False)

    await network.run_to_the_end(window)

    answer = await network.core(0).service.release(window.window_id)
    assert (answer.state, answer.abort_reason) == (WindowState.ABORTED, "record_disagreement")
