"""The commands of docs/operating-keys.md about an aggregator's keys, run word by word over a test deployment."""

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount.keys.descriptors import read_descriptor
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_protocol.release.record import sign_record
from fleetcount_protocol.release.record_json import record_to_json

from tests.support.protocol_samples import record, sampling_window

PAGE = Path(__file__).parents[2] / "docs" / "operating-keys.md"


def documented() -> list[list[str]]:
    """Return the commands of the chapter about an aggregator's keys, in order, but those for a store or a token.

    What `keys wrap` does with a token is in test_tokens.py.
    """
    chapter = PAGE.read_text().partition("\n## Keys of an aggregator\n")[2].partition("\n## ")[0]
    commands = [line.split() for line in re.findall(r"^ {4}fleetcount (.*)$", chapter, re.MULTILINE)]
    return [command for command in commands if command[0] != "aggregator" and command[:2] != ["keys", "wrap"]]


def write_release(path: Path) -> None:
    """Write a release of now by the deployment's own aggregators, under the keys that they had at first."""
    described = (read_descriptor(Path(f"{name}.descriptor.toml")) for name in ("alpha", "beta"))
    aggregators = tuple(replace(one, hpke_keys=()) for one in described)
    window, now = sampling_window(), int(time.time()) // 60 * 60
    shift = now - window.round_two_closes
    moments = {
        name: getattr(window, name) + shift
        for name in ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")
    }
    made = record(replace(window, aggregators=aggregators, **moments), released_at=now)
    keys = [load_signing_key(Path(one.aggregator_id) / "keys" / "signing.key") for one in aggregators]
    path.parent.mkdir()
    path.write_text(record_to_json(made, [sign_record(made, key) for key in keys]))


def test_the_documented_commands_about_keys_do_what_they_say(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    monkeypatch.chdir(tmp_path / "dep")
    Path("keys").mkdir()
    Path("analyst.toml").write_text(Path("analyst/analyst.toml").read_text().replace("../ca", "ca"))
    for name in ("analyst.crt", "analyst.key"):
        shutil.copy(Path("analyst") / name, name)
    write_release(Path("out/release.json"))

    commands = documented()
    ran = [fleetcount(*command) for command in commands]

    assert [one.code for one in ran] == [0] * len(ran), [one.err for one in ran]
    assert [command[:2] for command in commands] == [
        ["keys", "store"],
        ["keys", "descriptor"],
        ["keys", "succeed"],
        ["verify", "out/release.json"],
        ["verify", "out/release.json"],
    ]
    for path in ("keys/store.key", "keys/signing-2.key"):
        assert Path(path).stat().st_mode & 0o777 == 0o600
    load_signing_key(Path("keys/signing-2.key"))
    assert read_descriptor(Path("alpha.next.descriptor.toml")) == read_descriptor(Path("alpha.descriptor.toml"))
