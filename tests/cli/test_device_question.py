"""An owner lists, joins and leaves questions from the shell, and reads in words what the device did."""

import gc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.run.device import decimal_text
from fleetcount_client.device import Device
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import Question

from tests.cli.conftest import Ran
from tests.client.deployment import SIGNAL, Deployment
from tests.client.test_process import write_device

Run = Callable[..., Ran]
FIRST = 4_000_000_000


@pytest.fixture
def offered(tmp_path: Path) -> tuple[Path, Question]:
    """A device that was offered one question of the far future."""
    world = Deployment()
    private = f'''[private."{SIGNAL}"]\nvalues = ["B"]\n[questions]\njoin = "ask"'''
    config = write_device(world, tmp_path / "d", CertificateAuthority.create("test"), policy=private)
    question = world.question(schedule=replace(world.question().schedule, first=FIRST), coin=Coin.DAY)
    with_lists = {name: world.key_list(name, not_after=2 * FIRST) for name in world.sealing_keys}
    device = Device.from_config(config)
    device.questions.take([world.offer(question, lists=with_lists)])  # type: ignore[arg-type]
    device.questions.take([world.offer(world.once(FIRST, name="too much", min_batch_size=9), lists=with_lists)])  # type: ignore[arg-type]
    device.spool.rest()
    return config, question


@pytest.mark.parametrize("words", ["ledger", "spool", "status", "log", "question join {}", "question join none"])
def test_a_command_leaves_no_log_beside_the_state_file(
    fleetcount: Run, offered: tuple[Path, Question], words: str
) -> None:
    """What a command does not close stays open to its end, which collects no garbage, and the log is not folded in."""
    config, question = offered
    gc.disable()
    try:
        fleetcount("device", *words.format(question.question_id.hex()).split(), "--config", config)
        left = [path.name for path in config.parent.glob("device.db*")]
    finally:
        gc.enable()

    assert left == ["device.db"]


def test_an_owner_joins_reads_what_is_reserved_and_leaves(fleetcount: Run, offered: tuple[Path, Question]) -> None:
    config, question = offered
    name, short = question.name, question.question_id.hex()[:8]

    listed = fleetcount("device", "question", "list", "--config", config)
    joined = fleetcount("device", "question", "join", "--config", config, short)
    held = fleetcount("device", "question", "reserved", "--config", config)
    again = fleetcount("device", "question", "list", "--config", config)
    told = fleetcount("device", "log", "--config", config)
    ledger = fleetcount("device", "ledger", "--config", config)
    left = fleetcount("device", "question", "leave", "--config", config, name)
    freed = fleetcount("device", "question", "reserved", "--config", config)

    assert [one.code for one in (listed, joined, held, again, told, ledger, left, freed)] == [0] * 8
    assert ("offered" in listed.out, "coin holds for a day" in listed.out, "private" in listed.out) == (True,) * 3
    assert "1 charges" in joined.out
    assert "1 reserved" in held.out
    assert "all together would see 1 of its answers" in again.out
    assert (f"joined '{name}'" in told.out, "refused: 'too much'" in told.out) == (True, True)
    assert "answered 0, reserved 1" in ledger.out
    assert "1 charges freed, 0 stay" in left.out
    assert freed.out.startswith("0 reserved")


def test_a_question_beyond_the_budget_is_exit_code_three_and_one_that_is_not_known_is_two(
    fleetcount: Run, offered: tuple[Path, Question]
) -> None:
    config, question = offered
    config.write_text(config.read_text().replace("[private.", 'total_epsilon = "0.5"\n[private.'))

    refused = fleetcount("device", "question", "join", "--config", config, question.name)
    unknown = fleetcount("device", "question", "join", "--config", config, "another")

    assert (refused.code, unknown.code) == (3, 2)
    assert "the limit is 0.5" in refused.err
    assert "0 questions are called 'another'" in unknown.err
    assert "refused to join" in fleetcount("device", "log", "--config", config).out


@pytest.mark.parametrize(
    ("value", "said"),
    [("1/1000000", "0.00001"), ("0.200000000001", "0.20001"), ("1/3", "0.33334"), ("0.25", "0.25"), ("20", "20")],
)
def test_no_loss_or_chance_in_a_ledger_reads_smaller_than_it_is(value: str, said: str) -> None:
    assert decimal_text(Fraction(value)) == said
