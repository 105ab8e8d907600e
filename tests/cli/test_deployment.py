"""A test deployment and a question on its way through it: modes, names, signatures; what does not fit is refused."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import grpc
import pytest
from fleetcount.keys.descriptors import read_descriptor
from fleetcount.keys.operator import operator_of
from fleetcount.question.files import read_question
from fleetcount.read.readers import read_reader
from fleetcount.run.doctor_checks import check_authority
from fleetcount_aggregator.host.key_rotation import add_key, write_validities
from fleetcount_aggregator.host.keys import Validity, load_store_key
from fleetcount_client.assembly import trust_of
from fleetcount_client.config import load_settings
from fleetcount_mechanisms.statement import epsilon_of, ledger_loss_of
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    key_digest,
    load_certificate,
    load_private_key,
)
from fleetcount_protocol.channel.deny_list import sign_deny_list
from fleetcount_protocol.ids import AggregatorId, Digest
from fleetcount_protocol.window.fields import Mode, ReleaseKind
from fleetcount_transport.toml_writing import toml_text

from tests.support.cases import case
from tests.support.pem import pem_pair

SPEC = """
[question]
name = "speeds"
deployment = "test"
signal = "Vehicle.Speed"
min_batch_size = 10
[domain]
kind = "bins"
edges = ["0", "50"]
open_above = true
unit = "km/h"
[schedule]
opens = "in 10 s"
window = "2 h"
round_one = "1 min"
[mechanism]
sampling_rate = "0.25"
[release]
epsilon = "1"
[[aggregators]]
descriptor = "dep/alpha.descriptor.toml"
[[aggregators]]
descriptor = "dep/beta.descriptor.toml"
"""
CREATE = ("question", "create", "--spec", "spec.toml", "--output", "q.question")


@pytest.fixture
def deployed(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--devices", "2", "--base-port", "0").code == 0
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


def test_every_private_file_has_mode_0600_and_nothing_else_is_written(deployed: Path) -> None:
    files = {str(path.relative_to(deployed / "dep")): path for path in (deployed / "dep").rglob("*") if path.is_file()}

    private = {name for name in files if name.endswith(".key")}
    assert len(private) == 2 + 2 * 4 + 1 + 2
    assert all(files[name].stat().st_mode & 0o777 == 0o600 for name in private)
    assert not any(b"PRIVATE" in files[name].read_bytes() for name in files.keys() - private)


def test_a_device_s_status_says_when_its_certificate_ends_and_what_is_wrong_with_the_next(
    fleetcount: Callable, deployed: Path
) -> None:
    one, other = (deployed / "dep" / "devices" / number for number in ("0001", "0002"))
    said = [fleetcount("device", "status", "--config", one / "device.toml").out]
    (one / "device.crt.new").write_bytes((other / "device.crt").read_bytes())
    said.append(fleetcount("device", "status", "--config", one / "device.toml").out)

    assert "364 days left" in said[0]
    assert "no command is set: put it at device.crt.new" in said[0]
    assert "not taken: device.crt.new is for another key than the device's" in said[1]


@pytest.mark.parametrize(("days", "said"), [(-1, "begins"), (366, "ended")])
def test_a_device_s_status_says_that_its_certificate_is_not_valid(
    fleetcount: Callable, deployed: Path, monkeypatch: pytest.MonkeyPatch, days: int, said: str
) -> None:
    now, status = time.time() + days * 86_400, ("device", "status", "--config", "dep/devices/0001/device.toml")
    monkeypatch.setattr(time, "time", lambda: now)

    assert f"\nanswers nothing: its certificate {said} 20" in fleetcount(*status).out
    assert json.loads(fleetcount(*status, "--json").out)["valid"] is False


def test_an_existing_deployment_is_never_overwritten(fleetcount: Callable, deployed: Path) -> None:
    before = {path: path.read_bytes() for path in (deployed / "dep").rglob("*") if path.is_file()}

    ran = fleetcount("keys", "init", "--output", "dep")

    assert ran.code == 2
    assert "not empty" in ran.error_line
    assert {path: path.read_bytes() for path in (deployed / "dep").rglob("*") if path.is_file()} == before


def test_the_written_configurations_load_and_agree_with_the_descriptors(deployed: Path) -> None:
    from fleetcount_client.config import load_settings

    alpha = operator_of(deployed / "dep" / "alpha" / "aggregator.toml")
    descriptor = read_descriptor(deployed / "dep" / "beta.descriptor.toml")
    device = load_settings(deployed / "dep" / "devices" / "0001" / "device.toml")

    assert alpha.trusted[descriptor.aggregator_id].signing_public_key == descriptor.signing_public_key
    assert {one.id for one in device.aggregators} == set(alpha.trusted)


def test_one_window_is_created_signed_and_submitted_step_by_step(fleetcount: Callable, deployed: Path) -> None:
    def operator(name: str) -> list[str | Path]:
        return ["--config", deployed / "dep" / name / "aggregator.toml", "q.question"]

    assert fleetcount(*CREATE).code == 0
    assert (deployed / "q.seed").stat().st_mode & 0o777 == 0o600
    assert not any(read_question(deployed / "q.question").signatures)
    assert fleetcount("question", "sign", *operator("alpha")).code == 0
    early = fleetcount("question", "submit", *operator("alpha"))
    assert (early.code, "not signed by beta" in early.error_line) == (2, True)
    assert fleetcount("question", "sign", *operator("beta")).code == 0
    assert read_question(deployed / "q.question").complete
    assert "led by 'alpha'" in fleetcount("question", "submit", *operator("beta")).error_line
    assert fleetcount("question", "submit", *operator("alpha")).code == 0

    windows = deployed / "dep" / "alpha" / "questions"
    assert sorted(path.name for path in windows.iterdir()) == ["q.question", "q.seed"]
    assert "it is submitted once" in fleetcount("question", "submit", *operator("alpha")).error_line
    assert "exists already" in fleetcount(*CREATE).error_line


def test_an_operator_signs_nothing_its_configuration_does_not_allow(fleetcount: Callable, deployed: Path) -> None:
    (deployed / "spec.toml").write_text(SPEC.replace('deployment = "test"', 'deployment = "other"'))
    assert fleetcount(*CREATE).code == 0

    ran = fleetcount("question", "sign", "--config", "dep/alpha/aggregator.toml", "q.question")

    assert ran.code == 3
    assert "'other'" in ran.error_line
    assert not any(read_question(deployed / "q.question").signatures)


def test_a_question_names_no_sealing_key_whatever_the_descriptors_say(fleetcount: Callable, deployed: Path) -> None:
    """Whoever holds a key that devices seal to reads their shares: they take it from a list that its owner signed."""
    assert read_descriptor(deployed / "dep" / "beta.descriptor.toml").hpke_keys
    assert fleetcount(*CREATE).code == 0

    assert [one.hpke_keys for one in read_question(deployed / "q.question").question.aggregators] == [(), ()]


def test_a_tampered_question_or_seed_is_not_submitted(fleetcount: Callable, deployed: Path) -> None:
    fleetcount(*CREATE)
    for name in ("alpha", "beta"):
        fleetcount("question", "sign", "--config", f"dep/{name}/aggregator.toml", "q.question")
    (deployed / "q.seed").write_bytes(bytes(32))
    submit = ["question", "submit", "--config", "dep/alpha/aggregator.toml", "q.question"]

    assert "q.seed: the seed of verify keys is not the one the question commits to" in fleetcount(*submit).error_line
    whole = bytearray((deployed / "q.question").read_bytes())
    whole[-1] ^= 1
    (deployed / "q.question").write_bytes(whole)
    assert fleetcount(*submit).code in (2, 3)
    assert list((deployed / "dep" / "alpha" / "questions").iterdir()) == []


WRONG = [
    ('name = "speeds"', 'nmae = "speeds"', "did you mean 'name'"),
    ('name = "speeds"', "name = 5", "question.name is 5"),
    ('signal = "Vehicle.Speed"', "", "question.signal is missing"),
    ("min_batch_size = 10", "min_batch_size = 1", "whole number from 2"),
    ("min_batch_size = 10", 'min_batch_size = 10\nmode = "guess"', "'guess'"),
    ('kind = "bins"', 'kind = "circles"', "'circles'"),
    ('edges = ["0", "50"]', 'edges = ["0", "5,0"]', "domain.edges"),
    ('edges = ["0", "50"]', "edges = []", "domain.edges"),
    ('edges = ["0", "50"]', 'edges = ["50", "0"]', "strictly increasing"),
    ('"in 10 s"', '"in ten s"', "schedule.opens"),
    ('"in 10 s"', "2026-05-01T08:00:00", "zone"),
    ('"1 min"', '"2 h"', "schedule.window is '2 h'; allowed is a length in which both rounds have 1 s or more"),
    ('"1 min"', '"1 min"\nwindows = 3', "schedule.windows is given without schedule.every"),
    ('"1 min"', '"1 min"\nuntil = 2030-01-01T00:00:00Z', "schedule.until is given without schedule.every"),
    ('"in 10 s"', "2026-05-01T08:00:00Z", "a time from now on"),
    ('sampling_rate = "0.25"', 'sampling_rate = "0.51"', "sampling rate is 51/100"),
    ('sampling_rate = "0.25"', "sampling_rate = 0.25", "mechanism.sampling_rate"),
    ('sampling_rate = "0.25"', 'flip = "0.25"', "mechanism.flip is unknown; known are: kind"),
    ('epsilon = "1"', "", "exactly one of epsilon"),
    ('epsilon = "1"', 'epsilon = "nan"', "release.epsilon"),
    ('epsilon = "1"', 'epsilon = "1"\nkind = "exact"', "an exact release has no noise"),
    ('epsilon = "1"', 'epsilon = "1"\nlevel = "1"', "release.level is '1'"),
    (
        'epsilon = "1"',
        'variance = "9"',
        "'geometric' is asked, whose noise is given by noise_epsilon",
    ),
    (
        'epsilon = "1"',
        'kind = "gaussian"',
        "exactly one of epsilon (of the whole question, at delta) and sd",
    ),
    ('epsilon = "1"', 'kind = "gaussian"\nnoise_epsilon = "1"', "given by sd or variance"),
    ('epsilon = "1"', 'kind = "gaussian"\nsd = "3"\nvariance = "9"', "exactly one of epsilon"),
    ('epsilon = "1"', 'kind = "gaussian"\nsd = "0.4"', "release.sd"),
    ('epsilon = "1"', 'kind = "gaussian"\nvariance = "100000001"', "release.variance"),
    ('epsilon = "1"', 'kind = "exact"\nsd = "3"', "an exact release has no noise"),
    ("min_batch_size = 10", "min_batch_size = 1073741825", "a whole number from 2 to 1073741824"),
    (
        'sampling_rate = "0.25"',
        'sampling_rate = "0.25"\nface_probabilities = ["0.5"]',
        "mechanism.face_probabilities is ['0.5']: face",
    ),
    ('descriptor = "dep/beta.descriptor.toml"', 'descriptor = "absent.toml"', "absent.toml"),
    ('descriptor = "dep/beta.descriptor.toml"', 'descriptor = "dep/alpha.descriptor.toml"', "given twice"),
    ('descriptor = "dep/beta.descriptor.toml"', 'descriptor = "spec.toml"', "question is unknown; known are: id"),
    ("[question]", "[window", "is not TOML"),
    ("[question]", "[question]\n[question]", "is not TOML"),
]


def test_a_wrong_specification_is_refused_by_key_and_writes_nothing(fleetcount: Callable, deployed: Path) -> None:
    for old, new, named in WRONG:
        with case(new):
            assert old in SPEC
            (deployed / "spec.toml").write_text(SPEC.replace(old, new))

            ran = fleetcount(*CREATE)

            assert ran.code == 2
            assert named in ran.error_line
            assert not (deployed / "q.question").exists()
            assert not (deployed / "q.seed").exists()


@pytest.mark.parametrize(
    ("mode", "mechanism", "values"),
    [
        ("response", 'kind = "mangat"\nepsilon_local = "1"', 1),
        ("response", 'kind = "warner"\nkeep = "0.75"', 1),
        ("response", 'kind = "two-coin"\ntruth_probability = "0.8"\nyes_probability = "0.2"', 1),
        ("response", 'kind = "k-ary"\nepsilon_local = "1"', 3),
        ("response", 'kind = "mangat-vector"\nepsilon_local = "1"', 3),
        (
            "response",
            'kind = "asymmetric"\nepsilon_local = "1"\nprotects = { "[0, 1) km/h" = ["[1, ∞) km/h"] }',
            2,
        ),
        ("direct", "", 3),
    ],
)
def test_every_mechanism_can_be_specified(
    fleetcount: Callable, deployed: Path, mode: str, mechanism: str, values: int
) -> None:
    edges = ", ".join(f'"{edge}"' for edge in range(values))
    text = SPEC.replace("min_batch_size = 10", f'min_batch_size = 10\nmode = "{mode}"')
    text = text.replace('sampling_rate = "0.25"', mechanism).replace('edges = ["0", "50"]', f"edges = [{edges}]")
    (deployed / "spec.toml").write_text(text.replace('round_one = "1 min"\n', ""))

    ran = fleetcount(*CREATE)

    assert ran.code == 0, ran.err
    window = read_question(deployed / "q.question").question
    assert (window.mode, window.first_window.values) == (Mode[mode.upper()], values)
    assert window.release.kind is ReleaseKind.GEOMETRIC


@pytest.mark.parametrize(
    ("size", "variance", "epsilon"),
    [
        ('variance = "662.25"', Fraction(2649, 4), Decimal("0.30349")),
        ('sd = "25.7"', Fraction(66049, 100), Decimal("0.30391")),
        ('epsilon = "0.304"', Fraction(66009, 100), Decimal("0.304")),
    ],
)
def test_gaussian_noise_is_specified_by_variance_by_its_root_or_by_the_loss(
    fleetcount: Callable, deployed: Path, size: str, variance: Fraction, epsilon: Decimal
) -> None:
    text = SPEC.replace("min_batch_size = 10", 'min_batch_size = 10\nmode = "direct"').replace('epsilon = "1"', size)
    text = text.replace('sampling_rate = "0.25"', "").replace("[release]", '[release]\nkind = "gaussian"')
    (deployed / "spec.toml").write_text(text.replace('round_one = "1 min"\n', ""))

    ran = fleetcount(*CREATE)

    assert ran.code == 0, ran.err
    window = read_question(deployed / "q.question").question
    assert (window.release.kind, window.release.noise_variance) == (ReleaseKind.GAUSSIAN, variance)
    assert (epsilon_of(window.design), ledger_loss_of(window.design).delta) == (epsilon, Decimal("1E-9"))


@pytest.mark.parametrize(
    ("mode", "mechanism", "named"),
    [
        ("response", 'kind = "vector-mangat"\nepsilon_local = "1"', "did you mean 'mangat-vector'?"),
        ("response", 'kind = "k-ary"\nepsilon = "1"', "did you mean 'epsilon_local'?"),
        ("response", 'kind = "k-ary"\nepsilon_local = "1"\n[release]\nkind = "one_sided"', "did you mean 'one-sided'?"),
    ],
)
def test_an_old_spelling_is_refused_with_the_one_there_is(
    fleetcount: Callable, deployed: Path, mode: str, mechanism: str, named: str
) -> None:
    text = SPEC.replace("min_batch_size = 10", f'min_batch_size = 10\nmode = "{mode}"').replace("[release]\n", "")
    text = text.replace('epsilon = "1"', "").replace('sampling_rate = "0.25"', mechanism)
    (deployed / "spec.toml").write_text(text.replace('round_one = "1 min"\n', ""))

    ran = fleetcount(*CREATE)

    assert ran.code == 2
    assert named in ran.error_line


@pytest.mark.parametrize(("edges", "noise"), [('"0"', Fraction(1)), ('"0", "50"', Fraction(1, 2))])
def test_a_direct_question_gets_the_noise_its_epsilon_needs_and_no_more(
    fleetcount: Callable, deployed: Path, edges: str, noise: Fraction
) -> None:
    text = SPEC.replace("min_batch_size = 10", 'min_batch_size = 10\nmode = "direct"')
    text = text.replace('sampling_rate = "0.25"', "").replace('edges = ["0", "50"]', f"edges = [{edges}]")
    (deployed / "spec.toml").write_text(text.replace('round_one = "1 min"\n', ""))

    ran = fleetcount(*CREATE)

    assert ran.code == 0, ran.err
    design = read_question(deployed / "q.question").question.design
    assert (design.noise.epsilon, epsilon_of(design)) == (noise, 1)


def test_the_published_loss_never_exceeds_the_epsilon_asked_for(fleetcount: Callable, deployed: Path) -> None:

    for number, epsilon in enumerate(["0.1", "1/3", "1", "2.5"]):
        name = f"q{number}.question"
        spec = SPEC.replace("0.25", "0.4")
        (deployed / "spec.toml").write_text(spec)

        ran = fleetcount("question", "create", "--spec", "spec.toml", "--output", name, "--epsilon", epsilon)

        assert ran.code == 0, ran.err
        loss = epsilon_of(read_question(deployed / name).question.design)
        assert loss is not None
        # The statement is rounded up at the fifth digit.
        assert Fraction(epsilon) * Fraction(99, 100) < Fraction(loss) < Fraction(epsilon) + Fraction(1, 10**5)


def test_doctor_names_what_is_wrong(fleetcount: Callable, deployed: Path) -> None:
    config = deployed / "dep" / "alpha" / "aggregator.toml"
    (deployed / "dep" / "alpha" / "keys" / "signing.key").chmod(0o644)
    other = deployed / "dep" / "beta" / "keys" / "aggregator.key"
    own = deployed / "dep" / "alpha" / "keys" / "aggregator.key"
    own.write_bytes(other.read_bytes())

    ran = fleetcount("doctor", "--config", config)

    assert ran.code == 1
    lines = {line.split(":")[0].split(None, 1)[1]: line for line in ran.out.splitlines()}
    assert lines["signing key"].startswith("FAILED")
    assert lines["certificate aggregator.crt"].startswith("FAILED")
    assert lines["file modes"].startswith("FAILED")
    assert lines["peer beta"].startswith("FAILED")
    assert lines["sealing keys"].startswith("ok")
    assert "checks failed" in ran.error_line


@pytest.mark.processes
def test_the_core_of_grpc_writes_nothing_between_doctors_lines(deployed: Path) -> None:
    stranger = grpc.server(ThreadPoolExecutor(1))
    strangers = CertificateAuthority.create("strangers")
    pair = [pem_pair(strangers.issue_aggregator("somebody", ["127.0.0.1"]))]
    port = stranger.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    stranger.start()
    config = deployed / "dep" / "alpha" / "aggregator.toml"
    config.write_text(re.sub(r'(\[\[peers\]\][^\[]*endpoint = )"[^"]*"', rf'\1"127.0.0.1:{port}"', config.read_text()))
    assert str(port) in config.read_text()
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}

    command = [sys.executable, "-m", "fleetcount", "doctor", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=60, check=False)
    stranger.stop(None)

    assert "TLS failed" in done.stdout
    assert [line for line in done.stderr.splitlines() if not line.startswith("fleetcount doctor: ")] == []


def examined(fleetcount: Callable, config: Path) -> dict[str, str]:
    """Return what doctor says, by what it looked at."""
    ran = fleetcount("doctor", "--config", config)
    return {line.split(":")[0].split(None, 1)[1]: line for line in ran.out.splitlines()}


def deny(deployed: Path, config: Path, key: Digest, issued: int, expires: int) -> None:
    """Give an aggregator a deny list of one key, signed and ending so many days from now."""
    authority, now = deployed / "dep" / "ca" / "devices.crt", int(time.time())
    signer = CertificateAuthority(
        certificate=load_certificate(authority), private_key=load_private_key(authority.with_suffix(".key"))
    )
    moments = {"issued_at": now + issued * 86_400, "expires": now + expires * 86_400}
    (config.parent / "deny-list").write_bytes(sign_deny_list(signer, [key], number=7, **moments).encode())
    config.write_text(config.read_text().replace("\n[grpc]\n", 'deny_list_file = "deny-list"\n\n[grpc]\n'))


@pytest.mark.parametrize(
    ("issued", "expires", "said"),
    [
        (None, None, "note    deny list: none: a certificate is good until it ends"),
        (-1, 6, "ok      deny list: number 7, 1 keys, signed 1.0 days ago, 6.0 days left"),
        (-6, 1, "note    deny list: number 7, 1 keys, signed 6.0 days ago, 1.0 days left"),
        (-7, -1, "FAILED  deny list: number 7, 1 keys, signed 7.0 days ago, ended: no party is served until the next"),
    ],
)
def test_doctor_knows_how_old_the_deny_list_is(
    fleetcount: Callable, deployed: Path, issued: int | None, expires: int | None, said: str
) -> None:
    config = deployed / "dep" / "alpha" / "aggregator.toml"
    if issued is not None and expires is not None:
        deny(deployed, config, Digest(bytes(32)), issued, expires)

    assert examined(fleetcount, config)["deny list"] == said


def test_doctor_finds_an_aggregator_on_its_own_deny_list(fleetcount: Callable, deployed: Path) -> None:
    config = deployed / "dep" / "alpha" / "aggregator.toml"
    deny(deployed, config, key_digest(load_certificate(config.parent / "keys" / "aggregator.crt")), 0, 1)

    found = examined(fleetcount, config)["deny list"]

    assert found.startswith("FAILED")
    assert "the key of aggregator.crt is denied" in found


def test_doctor_knows_whose_a_certificate_is(fleetcount: Callable, deployed: Path) -> None:
    device, analyst = deployed / "dep" / "devices" / "0001", deployed / "dep" / "analyst"
    right = [examined(fleetcount, device / "device.toml")["certificate device.crt"]]
    right.append(examined(fleetcount, analyst / "analyst.toml")["certificate analyst.crt"])
    for end in ("crt", "key"):
        (device / f"device.{end}").write_bytes((analyst / f"analyst.{end}").read_bytes())

    wrong = examined(fleetcount, device / "device.toml")["certificate device.crt"]

    assert [line.split(", ")[1:] for line in right] == [
        ["purpose device", "364 days left"],
        ["purpose reader", "364 days left"],
    ]
    assert wrong.startswith("FAILED")
    assert "is for the purpose reader, not device" in wrong


def test_doctor_says_to_the_second_from_when_a_certificate_is_valid(deployed: Path) -> None:
    authority = deployed / "dep/ca/aggregators.crt"
    starts = load_certificate(authority).not_valid_before_utc
    early = starts - timedelta(minutes=1)

    found = check_authority(authority, early.timestamp())

    assert found.text.startswith(f"valid from {starts:%Y-%m-%dT%H:%M:%SZ} to ")
    assert found.text.endswith(f"only, and it is {early:%Y-%m-%dT%H:%M:%SZ}")


def test_doctor_looks_at_a_relay_too(fleetcount: Callable, deployed: Path) -> None:
    config = deployed / "relay.toml"
    config.write_text(
        '[relay]\n[tls]\ncertificate_file = "dep/alpha/keys/aggregator.crt"\n'
        'key_file = "dep/alpha/keys/aggregator.key"\n'
        'aggregator_ca_file = "dep/ca/aggregators.crt"\ndevice_ca_file = "dep/ca/devices.crt"\n'
        '[[aggregators]]\nid = "alpha"\nendpoint = "127.0.0.1:7411"\n'
    )

    found = examined(fleetcount, config)

    assert "is for the purpose aggregator, not relay" in found["certificate"]
    assert found["deny list"].startswith("note")
    assert found["file modes"].startswith("ok")


def test_a_descriptor_follows_the_keys_of_now(fleetcount: Callable, deployed: Path) -> None:
    keys = deployed / "dep" / "alpha" / "keys" / "hpke"
    add_key(keys, 2, post_quantum=False)
    add_key(keys, 3, post_quantum=False)
    now = int(time.time())
    write_validities(
        keys, {1: Validity(0, now + 900), 2: Validity(now - 5, now + 900), 3: Validity(now + 900, now + 999)}
    )
    config, old = deployed / "dep" / "alpha" / "aggregator.toml", deployed / "dep" / "alpha.descriptor.toml"

    ran = fleetcount("keys", "descriptor", "--config", config, "--from", old, "--output", "new.toml")
    other = fleetcount("keys", "descriptor", "--config", config, "--from", "dep/beta.descriptor.toml", "--output", "x")

    assert ran.code == 0, ran.err
    before, after = read_descriptor(old), read_descriptor(deployed / "new.toml")
    assert [key.key_id for key in after.hpke_keys] == [2, 1], "the newest that is valid first"
    assert replace(after, hpke_keys=before.hpke_keys) == before
    assert other.code == 2
    assert "--from describes 'beta'" in other.error_line


def test_a_store_key_is_made_once_and_for_its_owner_alone(fleetcount: Callable, deployed: Path) -> None:
    ran = fleetcount("keys", "store", "--output", "store.key")
    path = deployed / "store.key"
    first = path.read_bytes()

    assert ran.code == 0, ran.err
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(load_store_key(path)) == 32
    assert first.decode().strip() not in ran.out + ran.err
    again = fleetcount("keys", "store", "--output", "store.key")
    assert again.code == 2
    assert path.read_bytes() == first


def test_doctor_says_that_a_store_without_a_key_of_its_own_binds_the_signing_key(
    fleetcount: Callable, deployed: Path
) -> None:
    config = deployed / "dep" / "alpha" / "aggregator.toml"
    assert examined(fleetcount, config)["store key"].startswith("ok")
    config.write_text(config.read_text().replace('store_key_file = "keys/store.key"\n', ""))

    assert examined(fleetcount, config)["store key"].startswith("note    store key: follows from the signing key")


def test_a_signing_key_is_succeeded_for_everybody_who_has_the_statement(fleetcount: Callable, deployed: Path) -> None:
    dep = deployed / "dep"
    alpha, beta, analyst = dep / "alpha/aggregator.toml", dep / "beta/aggregator.toml", dep / "analyst/analyst.toml"
    device = dep / "devices/0001/device.toml"
    made = fleetcount("keys", "succeed", "--config", alpha, "--new-key", "next.key", "--output", "alpha.succession")
    assert made.code == 0, made.err
    assert (deployed / "next.key").stat().st_mode & 0o777 == 0o600
    statement = toml_text(str(deployed / "alpha.succession"))
    text = alpha.read_text().replace('"keys/signing.key"', f'"../../next.key"\nsuccession_files = [{statement}]')
    alpha.write_text(text)
    new = "dep/alpha.next.descriptor.toml"
    described = fleetcount(
        "keys", "descriptor", "--config", alpha, "--from", "dep/alpha.descriptor.toml", "--output", new
    )
    assert described.code == 0, described.err
    (deployed / "spec.toml").write_text(SPEC.replace("dep/alpha.descriptor.toml", new))
    assert fleetcount(*CREATE).code == 0
    assert fleetcount("question", "sign", "--config", alpha, "q.question").code == 0

    stranger = fleetcount("question", "sign", "--config", beta, "q.question")
    for config in (beta, analyst, device):
        rows = config.read_text().split("\n")
        at = next(place for place, row in enumerate(rows) if row.startswith("id = ") and '"alpha"' in row)
        config.write_text("\n".join([*rows[: at + 1], f"succession_files = [{statement}]", *rows[at + 1 :]]))

    assert stranger.code == 3
    assert "another operator or key than configured" in stranger.error_line
    assert fleetcount("question", "sign", "--config", beta, "q.question").code == 0
    assert fleetcount("question", "submit", "--config", alpha, "q.question").code == 0
    keys = (
        read_descriptor(dep / "alpha.descriptor.toml").signing_public_key,
        read_descriptor(deployed / new).signing_public_key,
    )
    for config in (analyst, device, beta, alpha):
        assert read_reader(config).trusted[AggregatorId("alpha")].keys == keys
    trust_of(load_settings(device)).check_question(read_question(deployed / "q.question"))


def test_a_succession_whose_statement_cannot_be_written_leaves_no_key(fleetcount: Callable, deployed: Path) -> None:
    alpha = deployed / "dep/alpha/aggregator.toml"
    succeed = ("keys", "succeed", "--config", alpha, "--new-key", "next.key", "--output")

    refused = fleetcount(*succeed, "nowhere/alpha.succession")

    assert (refused.code, "'nowhere/alpha.succession' cannot be written" in refused.error_line) == (2, True)
    assert not (deployed / "next.key").exists()
    assert fleetcount(*succeed, "alpha.succession").code == 0


def test_a_succession_that_does_not_fit_is_refused_by_its_file(fleetcount: Callable, deployed: Path) -> None:
    alpha, beta = deployed / "dep/alpha/aggregator.toml", deployed / "dep/beta/aggregator.toml"
    text = alpha.read_text()
    made = fleetcount("keys", "succeed", "--config", beta, "--new-key", "next.key", "--output", "beta.succession")
    assert made.code == 0, made.err
    (deployed / "none.succession").write_bytes(b"none")
    for name, said in (
        ("beta", "is not trusted: succession of beta in the place of alpha"),
        ("none", "is no succession of a signing key"),
        ("missing", "cannot be read: No such file"),
    ):
        file = toml_text(str(deployed / f"{name}.succession"))
        alpha.write_text(text.replace("[keys]", f"[keys]\nsuccession_files = [{file}]"))
        ran = fleetcount("aggregator", "serve", "--config", alpha)
        assert ran.code == 2, ran.err
        assert said in ran.error_line
    alpha.write_text(text.replace('store_key_file = "keys/store.key"\n', ""))

    bound = fleetcount("keys", "succeed", "--config", alpha, "--new-key", "other.key", "--output", "alpha.succession")

    assert bound.code == 2
    assert "the store's key follows from the signing key" in bound.error_line
    assert not (deployed / "other.key").exists()


def test_a_store_in_a_file_has_one_process_with_all_roles(fleetcount: Callable, deployed: Path) -> None:
    alpha = deployed / "dep/alpha/aggregator.toml"

    some = fleetcount("aggregator", "serve", "--config", alpha, "--roles", "intake,worker")
    wrong = fleetcount("aggregator", "serve", "--config", alpha, "--roles", "leader")

    assert (some.code, wrong.code) == (2, 2)
    assert "--roles is intake,worker and store.url is missing" in some.error_line
    assert "--roles names 'leader'; allowed are some of intake, worker, coordinator" in wrong.error_line
