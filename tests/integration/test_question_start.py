"""A question counted from submission over real processes: its leader is killed as it fixes the start, which stays."""

import hashlib
import json
import math
import secrets
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.keys.deployment import write_device
from fleetcount.question.files import new_question_files
from fleetcount_aggregator.windows.status import QuestionLine, read_status
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.fields import Participants, Schedule, Submission
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.integration.test_crashes import ENDED_ITSELF
from tests.integration.test_question import MOST_NOISE
from tests.support.deployment import LiveDeployment
from tests.support.processes import ChildProcess, pace, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

NAMES = ("place 1", "place 2")
COUNTS = (1, 1, 0)
WINDOWS = 2


def counted(deployment: LiveDeployment, seed: bytes) -> Question:
    """Return a question of short direct windows, the first of which opens three seconds after it is submitted."""
    length, gap, now = math.ceil(9 * deployment.pace), math.ceil(4 * deployment.pace), math.ceil(time.time())
    schedule = Schedule(
        first=None,
        every_s=length + gap,
        windows=WINDOWS,
        round_one_s=length,
        round_two_s=0,
        expiry_s=3600,
        submission=Submission(delay_s=3, earliest=now, latest=now + 600),
    )
    return deployment.question(
        3,
        mode=Mode.DIRECT,
        mechanism=None,
        schedule=schedule,
        participants=Participants.NOISED,
        release=Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(10), level=Fraction(19, 20)),
        verify_seed_digest=Digest(hashlib.sha256(seed).digest()),
    )


def device(deployment: LiveDeployment, number: int) -> ChildProcess:
    """Return an owner's own process, which joins what is on offer and says the place of its number."""
    config = write_device(deployment.written, number, transport="grpc")
    text = config.read_text().replace('largest_epsilon = "1" ', 'largest_epsilon = "20"').replace('"10"', '"100"')
    joins = '[delivery]\npoll_interval_s = 1\n\n[questions]\njoin = "auto"\n\n[policy]\nallow_direct = true'
    config.write_text(text.replace("[policy]", joins, 1))
    (config.parent / "currentlocation.json").write_text(json.dumps(NAMES[number - 1]))
    command = [sys.executable, "-m", "fleetcount", "device", "run", "--config", str(config)]
    return ChildProcess.of(f"device {number}", command, deployment.root)


def known_at(deployment: LiveDeployment, position: int) -> QuestionLine | None:
    """Return what an aggregator's store has of the only question."""
    return next(iter(read_status(deployment.store_place(position)).questions), None)


def run(*arguments: str | Path) -> str:
    """Run the command as a person does, which succeeds; return what it prints."""
    line = [sys.executable, "-m", "fleetcount", *map(str, arguments)]
    ran = subprocess.run(line, capture_output=True, check=False, text=True, timeout=120 * pace())
    assert ran.returncode == 0, (arguments, ran.stdout, ran.stderr)
    return ran.stdout


def test_a_leader_that_dies_as_it_fixes_the_start_asks_with_that_start_once_it_is_back(tmp_path: Path) -> None:
    deployment = LiveDeployment(tmp_path / "pair", largest_epsilon=100)
    leader = deployment.children[0]
    devices = [device(deployment, number) for number in range(1, len(NAMES) + 1)]
    path, seed, got = tmp_path / "q.question", secrets.token_bytes(32), tmp_path / "got"
    reader = ("--question", path, "--config", deployment.analyst)
    try:
        deployment.start(0, "question.after_install_store")
        deployment.start(1)
        deployment.wait_ready()
        new_question_files(path, counted(deployment, seed), seed)
        for position in range(2):
            run("question", "sign", "--config", deployment.config(position), path)
        for one in devices:
            one.start()
        run("question", "submit", "--config", deployment.config(0), path)
        wait_until(lambda: not leader.running, "the leader has ended itself")
        fixed = known_at(deployment, 0)
        assert known_at(deployment, 1) is None
        deployment.start(0)
        deployment.wait_ready()
        wait_s = math.ceil(60 * deployment.pace)
        fetched = run("question", "release", *reader, "--output", got, "--wait", str(wait_s))
        known = [known_at(deployment, position) for position in range(2)]
        kept = run("question", "status", *reader, "--records", got)
    finally:
        for child in (*devices, *deployment.children):
            child.terminate()
        ends = [child.ended() for child in deployment.children]
        for one in devices:
            one.reap()

    assert fixed is not None
    [start] = fixed.orders
    assert [one is not None and list(one.orders) for one in known] == [[start], [start]]
    assert (leader.ends, ends) == ([ENDED_ITSELF, 0], [0, 0])
    assert f"got: {WINDOWS} new records" in fetched
    assert "all signatures and the chain hold" in kept
    records = [record_from_json(one.read_text())[0] for one in sorted(got.glob("0*.json"))]
    assert [one.window.question.index for one in records] == list(range(WINDOWS))
    assert records[0].window.round_one_opens == start.order.start
    for record in records:
        assert all(abs(cell.raw - count) <= MOST_NOISE for cell, count in zip(record.cells, COUNTS, strict=True))
    run("question", "export", "--records", got, "--output", tmp_path / "q.csv")
    assert deployment.troubles() == []
