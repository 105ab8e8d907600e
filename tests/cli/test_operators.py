"""An operator's first hour: each makes its own keys, trusts another by voice, and admits who asks; nothing twice."""

import asyncio
import base64
import io
import os
import pwd
import re
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount.command.options import write_file
from fleetcount.keys import broker as broker_commands
from fleetcount.keys import operators
from fleetcount.keys.describing import fingerprint_of
from fleetcount.keys.descriptors import read_whole_descriptor
from fleetcount.keys.pki_directory import PkiDirectory
from fleetcount.keys.requests import make_request
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.peers import PeerUnreachableError
from fleetcount_aggregator.process.app import serve
from fleetcount_aggregator.process.serving import load_tls
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_client.config import load_settings
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    load_authorities,
    load_certificate,
    purpose_of,
    verify_chain,
)
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_relay.config import load_relay_config
from fleetcount_transport.toml_table import ConfigError

from tests.support.pem import pem_pair
from tests.support.users import user_of

ALPHA, BETA = "alpha/alpha.descriptor.toml", "beta/beta.descriptor.toml"
BOTH = (ALPHA, BETA)


@pytest.fixture
def two(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two operators who do not know each other yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())  # Nobody is there to type.
    for name in ("alpha", "beta"):
        new(fleetcount, name)
    return tmp_path


def new(fleetcount: Callable, name: str, *options: str, code: int = 0) -> str:
    ran = fleetcount("operator", "new", name, "--host", f"{name}.example", *options)
    assert ran.code == code, ran.err
    return ran.out + ran.err


def join(fleetcount: Callable, whom: str, directory: str, *, fingerprint: str = "", code: int = 0) -> str:
    said = fingerprint or fingerprint_of(Path(whom))
    ran = fleetcount("operator", "join", whom, "--directory", directory, "--fingerprint", said)
    assert ran.code == code, ran.err
    return ran.out + ran.err


@pytest.fixture
def joined(fleetcount: Callable, two: Path) -> Path:
    join(fleetcount, BETA, "alpha")
    join(fleetcount, ALPHA, "beta")
    return two


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


def test_an_operator_has_everything_but_a_peer_and_hands_out_nothing_private(two: Path, fleetcount: Callable) -> None:
    ran = fleetcount("doctor", "--config", "alpha/aggregator.toml")

    assert ran.code == 1
    assert [line for line in ran.out.splitlines() if line.startswith("FAILED")] == [
        "FAILED  peers: none: aggregators count together, `fleetcount operator join` adds another"
    ]
    private = {name for name, content in tree(two).items() if b"PRIVATE KEY" in content or name.endswith(".key")}
    assert len(private) == 2 * 6
    assert {stat.S_IMODE((two / name).stat().st_mode) for name in private} == {0o600}
    public = (two / ALPHA).read_bytes()
    # The last line of a P-256 key is of its public half.
    secrets = [(two / name).read_bytes().replace(b"-----BEGIN PRIVATE KEY-----\n", b"")[:64] for name in private]
    assert not any(secret.partition(b"\n")[0] in public for secret in secrets)


def test_what_is_made_again_is_left_alone_and_what_is_another_is_refused(two: Path, fleetcount: Callable) -> None:
    before = tree(two)

    assert "was made before: nothing was changed" in new(fleetcount, "alpha")
    assert "--broker gives 'b.example:8883'" in new(fleetcount, "alpha", "--broker", "b.example:8883", code=2)
    assert "--deployment gives 'other'" in new(fleetcount, "alpha", "--deployment", "other", code=2)
    assert "has '10', --min-batch gives '3'" in new(fleetcount, "alpha", "--min-batch", "3", code=2)
    (two / "gamma").mkdir()
    (two / "gamma" / "notes.txt").write_text("mine")
    assert "is not empty" in new(fleetcount, "gamma", code=2)
    assert tree(two) == before | {str(two / "gamma/notes.txt"): b"mine"}


def test_what_ends_half_way_leaves_nothing(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(operators, "encode_descriptor", full)
        assert "No space left" in new(fleetcount, "alpha", code=5)

    assert list(tmp_path.iterdir()) == []
    new(fleetcount, "alpha")


def test_an_aggregator_without_a_peer_does_not_start(two: Path) -> None:
    with pytest.raises(ConfigError, match=r"peers is missing; allowed is one .* `fleetcount operator join`"):
        asyncio.run(serve(load_config(two / "alpha/aggregator.toml", {}), {}))


def test_a_peer_is_trusted_by_its_fingerprint_alone_and_once(two: Path, fleetcount: Callable) -> None:
    before = tree(two)

    assert "it is not what its operator handed over" in join(fleetcount, BETA, "alpha", fingerprint="00" * 16, code=3)
    assert "describes this aggregator itself" in join(fleetcount, ALPHA, "alpha", code=2)
    ran = fleetcount("operator", "join", BETA, "--directory", "alpha")
    assert (ran.code, "nobody typed the fingerprint" in ran.err) == (2, True)
    assert tree(two) == before

    join(fleetcount, BETA, "alpha", fingerprint=fingerprint_of(Path(BETA)).replace(" ", "").upper())
    config = load_config(two / "alpha/aggregator.toml", {})
    parts = read_whole_descriptor(Path(BETA)).operator_parts
    assert parts is not None
    own, peers = two / "alpha/pki/aggregators.crt", two / "alpha/peers/beta.crt"
    assert config.aggregator_authorities == {"alpha": own, "beta": peers}
    assert load_authorities(config.aggregator_authorities[AggregatorId("beta")]) == (parts.aggregator_authority,)
    assert parts.device_authority in load_authorities(config.tls.device_ca_file)
    after = tree(two)
    assert "is a peer already; nothing was changed" in join(fleetcount, BETA, "alpha")
    assert tree(two) == after


def test_a_peer_that_is_another_now_and_one_that_is_a_double_are_refused(joined: Path, fleetcount: Callable) -> None:
    (joined / "x").mkdir()
    os.chdir(joined / "x")
    new(fleetcount, "beta")
    new(fleetcount, "gamma", "--operator", "operator of  ALPHA")
    new(fleetcount, "delta", "--deployment", "other")
    assert fleetcount("operator", "new", "epsilon", "--host", "beta.example").code == 0
    os.chdir(joined)
    before = tree(joined)

    said = [
        join(fleetcount, "x/beta/beta.descriptor.toml", "alpha", code=3),
        join(fleetcount, "x/gamma/gamma.descriptor.toml", "alpha", code=2),
        join(fleetcount, "x/delta/delta.descriptor.toml", "alpha", code=2),
        join(fleetcount, "x/epsilon/epsilon.descriptor.toml", "alpha", code=2),
    ]

    assert "another signing_public_key of 'beta'" in said[0]
    assert "operators must be distinct" in said[1]
    assert "of deployment 'other', this aggregator of 'fleet'" in said[2]
    assert "epsilon.descriptor.toml cannot be a peer here: peers: endpoint 'beta.example:7421' occurs twice" in said[3]
    assert tree(joined) == before, "the devices of whoever is refused are not trusted"


def test_a_join_that_was_cut_short_is_finished(
    two: Path, fleetcount: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(path: Path, content: bytes) -> None:
        if path.name == "beta.descriptor.toml":
            raise KeyboardInterrupt
        write_file(path, content)

    with monkeypatch.context() as broken:
        broken.setattr(operators, "write_file", cut)
        join(fleetcount, BETA, "alpha", code=130)
    assert not load_config(two / "alpha/aggregator.toml", {}).peers

    join(fleetcount, BETA, "alpha")

    assert [peer.id for peer in load_config(two / "alpha/aggregator.toml", {}).peers] == ["beta"]
    assert len(load_authorities(two / "alpha/trusted/devices.crt")) == 2


async def test_who_is_certified_by_another_operator_is_not_taken_for_the_peer(joined: Path) -> None:
    """A listener that says it is beta, certified by beta's authority and by alpha's: alpha speaks with the first."""
    config, beta = load_config(joined / "alpha/aggregator.toml", {}), AggregatorId("beta")
    tls = load_tls(config)
    assert tls is not None
    found = {}
    for whose in ("beta", "alpha"):
        authority = PkiDirectory(joined / whose / "pki").authority("aggregators")
        credential = authority.issue_aggregator("beta", ["127.0.0.1"])
        roots = config.tls.aggregator_ca_file.read_bytes()
        server = grpc.aio.server()
        credentials = grpc.ssl_server_credentials([pem_pair(credential)], roots, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        peer = GrpcPeer(
            beta, f"127.0.0.1:{port}", caller=AggregatorId("alpha"), timeout_s=5, credentials=tls.clients[beta]
        )
        with pytest.raises(PeerUnreachableError) as unreachable:
            await peer.status(WindowId(bytes(32)))
        found[whose] = str(unreachable.value)
        await peer.close()
        await server.stop(0)

    assert "unimplemented" in found["beta"]
    assert "unimplemented" not in found["alpha"]


def asked(fleetcount: Callable, *arguments: str) -> None:
    ran = fleetcount(*arguments, *BOTH)
    assert ran.code == 0, ran.err


def test_one_operator_admits_and_both_know_whom(joined: Path, fleetcount: Callable) -> None:
    asked(fleetcount, "device", "new", "car")
    asked(fleetcount, "analyst", "new", "ana")
    asked(fleetcount, "relay", "new", "relay", "--host", "relay.example")
    asked(fleetcount, "broker", "new", "broker", "--host", "broker.example")
    names = ("car", "ana", "relay", "broker")
    requests = [f"{name}/{name}.request" for name in names]

    refused = fleetcount("operator", "admit", *requests, "--directory", "alpha")
    ran = fleetcount("operator", "admit", *requests, "--directory", "alpha", "--yes")
    before = tree(joined)
    again = fleetcount("operator", "admit", *requests, "--directory", "alpha", "--yes")

    assert (refused.code, ran.code, again.code) == (2, 0, 0), ran.err
    assert again.out.count("nothing was changed") == 4
    assert tree(joined) == before
    certificates = {name: load_certificate(joined / name / f"{name}.crt") for name in names}
    purposes = (Purpose.DEVICE, Purpose.READER, Purpose.RELAY, Purpose.BROKER)
    assert tuple(purpose_of(one) for one in certificates.values()) == purposes
    known = load_authorities(joined / "beta/trusted/devices.crt")
    verify_chain(certificates["car"], known, datetime.now(UTC).timestamp(), Purpose.DEVICE)
    verify_chain(certificates["ana"], known, datetime.now(UTC).timestamp(), Purpose.READER)
    device = load_settings(joined / "car/device.toml")
    left = certificates["car"].not_valid_after_utc - certificates["car"].not_valid_before_utc
    assert left.total_seconds() > 2 * device.policy.fresh_ledger_wait_s
    assert [one.id for one in load_relay_config(joined / "relay/relay.toml").aggregators] == ["alpha", "beta"]
    assert re.search(r"^user beta$", (joined / "broker/mosquitto.acl").read_text(), re.MULTILINE)
    shown = re.findall(r"key ([0-9a-f]{16})\n", refused.out)
    told = [fleetcount("device", "new", "car", *BOTH).out, fleetcount("analyst", "new", "ana", *BOTH).out]
    assert [re.findall(r"key ([0-9a-f]{16}): hand it", one) for one in told] == [shown[:1], shown[1:2]]
    assert "DEPLOYMENT" not in (joined / "broker/mosquitto.acl").read_text()
    places = re.findall(
        r"^(?:\w+file|acl_file|\w+_location) (\S+)$", (joined / "broker/mosquitto.conf").read_text(), re.M
    )
    assert len(places) == 6
    assert [place for place in places if not Path(place).exists() or not place.startswith(f"{joined}/broker/")] == []


GAMMA = "gamma/gamma.descriptor.toml"


@pytest.fixture
def broker(joined: Path, fleetcount: Callable) -> Path:
    """A broker of two operators; a third one begins later."""
    asked(fleetcount, "broker", "new", "broker", "--host", "broker.example")
    new(fleetcount, "gamma")
    return joined / "broker"


def test_a_broker_s_owner_may_be_a_user_without_a_name(
    two: Path, fleetcount: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(fleetcount, "broker", "new", "named", "--host", "broker.example")
    with monkeypatch.context() as nameless:
        nameless.setattr("os.geteuid", lambda: user_of(0))
        asked(fleetcount, "broker", "new", "nameless", "--host", "broker.example")

    rows = {name: (two / name / "mosquitto.conf").read_text().splitlines() for name in ("named", "nameless")}
    owner = pwd.getpwuid(os.geteuid()).pw_name
    assert {name: [row for row in rows[name] if row.startswith("user ")] for name in rows} == {
        "named": [f"user {owner}"],
        "nameless": [],
    }


@pytest.mark.parametrize("host", ["0.0.0.0", "0.0.0.0:7411", "::", "[::]:7411"])
def test_an_address_of_everywhere_is_no_place_where_others_reach_a_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleetcount: Callable, host: str
) -> None:
    monkeypatch.chdir(tmp_path)

    refused = fleetcount("operator", "new", "alpha", "--host", host)

    assert (refused.code, f"--host is {host!r}, where others reach nobody" in refused.error_line) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_broker_is_where_the_descriptors_say(two: Path, fleetcount: Callable) -> None:
    new(fleetcount, "gamma", "--broker", "broker.example:8883")
    begun = ("broker", "new", "broker", *BOTH, GAMMA, "--host")

    refused = fleetcount(*begun, "broker.example:8884")

    assert "the descriptors name the broker 'broker.example:8883'; it must be the same" in refused.error_line
    assert (refused.code, (two / "broker").exists()) == (2, False)
    assert fleetcount(*begun, "broker.example").code == 0


def let_in(fleetcount: Callable, whom: str, *, fingerprint: str = "", code: int = 0) -> str:
    said = fingerprint or fingerprint_of(Path(whom))
    ran = fleetcount("broker", "join", whom, "--directory", "broker", "--fingerprint", said)
    assert ran.code == code, ran.err
    return ran.out + ran.err


def test_a_broker_lets_in_whom_a_later_operator_certifies_as_if_it_had_begun_with_it(
    broker: Path, fleetcount: Callable
) -> None:
    before = tree(broker)

    refused = let_in(fleetcount, GAMMA, fingerprint="00" * 16, code=3)
    ran = fleetcount("broker", "join", GAMMA, "--directory", "broker")
    known = let_in(fleetcount, BETA)

    assert "it is not what its operator handed over" in refused
    assert (ran.code, "nobody typed the fingerprint" in ran.err) == (2, True)
    assert "'beta' is let in already; nothing was changed" in known
    assert tree(broker) == before

    assert "a reload (SIGHUP)" in let_in(fleetcount, GAMMA)
    after = tree(broker)
    assert "'gamma' is let in already; nothing was changed" in let_in(fleetcount, GAMMA)
    whole = [
        fleetcount("broker", "new", name, "--host", "broker.example", *BOTH, GAMMA).code for name in ("broker", "whole")
    ]
    assert whole == [0, 0]
    assert tree(broker) == after
    for file in ("clients.crt", "clients.crl", "mosquitto.acl", "gamma.descriptor.toml"):
        assert (broker / file).read_bytes() == (broker.parent / "whole" / file).read_bytes(), file


def test_what_is_newer_at_a_broker_stays_and_a_join_that_was_cut_short_is_finished(
    broker: Path, fleetcount: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(fleetcount, "device", "new", "car")
    for line in (
        ("operator", "admit", "car/car.request", "--directory", "alpha", "--yes"),
        ("pki", "revoke", "--pki", "alpha/pki", "--certificate", "car/car.crt"),
    ):
        assert fleetcount(*line).code == 0
    newest = b"".join((broker.parent / one / "pki/clients.crl").read_bytes() for one in ("alpha", "beta"))
    (broker / "clients.crl").write_bytes(newest)
    rules = (broker / "mosquitto.acl").read_text() + "\n# Ours.\n"
    (broker / "mosquitto.acl").write_text(rules)
    write, written = broker_commands.write_file, []

    def cut(path: Path, content: bytes) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, content)

    with monkeypatch.context() as broken:
        broken.setattr(broker_commands, "write_file", cut)
        let_in(fleetcount, GAMMA, code=130)
    assert "added 'gamma'" in let_in(fleetcount, GAMMA)

    assert written == ["gamma.descriptor.toml", "clients.crl", "clients.crt"]
    assert (broker / "clients.crl").read_bytes().startswith(newest)
    assert (broker / "mosquitto.acl").read_text().startswith(rules)
    assert len(load_authorities(broker / "clients.crt")) == 6


def test_a_broker_does_not_let_in_a_double_or_somebody_else_under_a_known_name(
    broker: Path, fleetcount: Callable
) -> None:
    (broker.parent / "x").mkdir()
    os.chdir(broker.parent / "x")
    new(fleetcount, "beta")
    new(fleetcount, "delta", "--operator", "operator of  ALPHA")
    new(fleetcount, "gamma", "--deployment", "other")
    os.chdir(broker.parent)
    before = tree(broker)

    said = [
        let_in(fleetcount, "x/beta/beta.descriptor.toml", code=3),
        let_in(fleetcount, "x/delta/delta.descriptor.toml", code=2),
        let_in(fleetcount, "x/gamma/gamma.descriptor.toml", code=2),
    ]
    nowhere = fleetcount("broker", "join", GAMMA, "--directory", "alpha")

    assert "another signing_public_key of 'beta'" in said[0]
    assert "operators must be distinct" in said[1]
    assert "of deployment 'other', this broker of 'fleet'" in said[2]
    assert (nowhere.code, "the folder that `fleetcount broker new` made" in nowhere.err) == (2, True)
    assert tree(broker) == before


@pytest.mark.parametrize(
    ("purpose", "name", "hosts", "code", "says"),
    [
        (Purpose.AGGREGATOR, "gamma", ["g.example"], 2, "is of an aggregator"),
        (Purpose.RELAY, "beta", ["r.example"], 3, "the name of an aggregator"),
        (Purpose.BROKER, "broker", ["alpha"], 3, "the name of an aggregator"),
        (Purpose.READER, "beta-slot1", [], 3, "the name of an aggregator"),
        (Purpose.DEVICE, "car-17", [], 2, "is of a device and has a name"),
        (Purpose.READER, "ana", ["a.example"], 2, "has no host"),
        (None, "", [], 2, "does not say what it is for"),
    ],
)
def test_what_an_operator_must_not_certify_it_does_not(
    joined: Path, fleetcount: Callable, purpose: Purpose | None, name: str, hosts: list[str], code: int, says: str
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (joined / "x.request").write_bytes(make_request(key, purpose, name, hosts))
    before = tree(joined)

    ran = fleetcount("operator", "admit", "x.request", "--directory", "alpha", "--yes")

    assert (ran.code, says in ran.err) == (code, True), ran.err
    assert tree(joined) == before


def test_a_descriptor_with_a_strange_authority_is_refused(two: Path, fleetcount: Callable) -> None:
    text = (two / BETA).read_text()
    own = re.search(r'^aggregator_authority = "(.+)"$', text, re.MULTILINE)
    assert own is not None
    foreign = CertificateAuthority.create("x")
    leaf = foreign.issue_device().certificate
    for wrong in ("AAAA", own[1][:-8], base64.b64encode(leaf.public_bytes(Encoding.DER)).decode()):
        (two / "wrong.toml").write_text(text.replace(own[1], wrong))
        assert "aggregator_authority" in join(fleetcount, "wrong.toml", "alpha", code=2)


@pytest.mark.parametrize("kind", ["aggregator", "device"])
def test_a_descriptor_with_another_authority_s_list_or_none_is_refused(
    two: Path, fleetcount: Callable, kind: str
) -> None:
    text = (two / BETA).read_text()
    own = re.search(rf'^{kind}_revocations = "(.+)"$', text, re.MULTILINE)
    other = {"aggregator": "device", "device": "aggregator"}[kind]
    foreign = re.search(rf'^{other}_revocations = "(.+)"$', text, re.MULTILINE)
    assert own is not None
    assert foreign is not None
    for wrong, says in (("AAAA", "is no list"), (foreign[1], "is not signed by its authority")):
        (two / "wrong.toml").write_text(text.replace(own[1], wrong))
        said = join(fleetcount, "wrong.toml", "alpha", code=2)
        assert f"{kind}_revocations" in said
        assert says in said


def test_a_folder_of_a_party_is_made_once(joined: Path, fleetcount: Callable) -> None:
    asked(fleetcount, "device", "new", "car")
    before = tree(joined)

    again = fleetcount("device", "new", "car", *BOTH)
    other = fleetcount("device", "new", "car", "--relay", "r.example:7431", *BOTH)
    one = fleetcount("device", "new", "other", ALPHA)
    twice = fleetcount("device", "new", "other", "--signal", "Vehicle.Speed=a", "--signal", "Vehicle.Speed=b", *BOTH)
    odd = fleetcount("device", "new", "other", "--signal", "Vehicle Speed=a", *BOTH)

    assert (again.code, "nothing was changed" in again.out) == (0, True)
    assert (other.code, "says something else; nothing was changed" in other.err) == (2, True)
    assert (one.code, "a question needs two or more" in one.err) == (2, True)
    assert (twice.code, "--signal gives 'Vehicle.Speed' twice; allowed: once" in twice.err) == (2, True)
    assert (odd.code, "signal is 'Vehicle Speed', allowed: " in odd.err) == (2, True)
    assert tree(joined) == before


def test_a_device_that_will_not_answer_yet_says_from_when_on(
    joined: Path, fleetcount: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    for name, options in (("waits", ()), ("ready", ("--wait", "0")), ("short", ())):
        asked(fleetcount, "device", "new", name, *options)
    fleetcount("operator", "admit", "waits/waits.request", "ready/ready.request", "--directory", "alpha", "--yes")
    fleetcount("operator", "admit", "short/short.request", "--directory", "alpha", "--yes", "--days", "20")
    first = load_certificate(joined / "waits/waits.crt").not_valid_before_utc + timedelta(days=30)

    said = {
        name: fleetcount("device", "status", "--config", f"{name}/device.toml").out
        for name in ("waits", "ready", "short")
    }
    doctor = fleetcount("doctor", "--config", "waits/device.toml").out
    ran = fleetcount("device", "run", "--once", "--config", "waits/device.toml")

    date = f"this device answers from {first:%Y-%m-%dT%H:%M:%SZ}, because"
    assert date in said["waits"]
    assert "set enrolment_wait_s in [policy]" in said["waits"]
    assert "answers what is on offer" in said["ready"]
    assert "its certificate ends before" in said["short"]
    assert "ends before" not in said["waits"]
    assert f"note    new ledger: {date}" in doctor
    assert ran.code == 4
    assert date in caplog.text
    assert not (joined / "ready/device.db").exists()


def test_a_party_that_is_shut_out_stays_out_and_the_list_is_good_for_as_long_as_the_first(
    joined: Path, fleetcount: Callable
) -> None:
    asked(fleetcount, "device", "new", "car")
    admit = ("operator", "admit", "car/car.request", "--directory", "alpha", "--yes")
    assert fleetcount(*admit).code == 0
    before = PkiDirectory(joined / "alpha/pki").deny_list()

    assert fleetcount("pki", "revoke", "--pki", "alpha/pki", "--certificate", "car/car.crt").code == 0
    again = fleetcount(*admit)

    after = PkiDirectory(joined / "alpha/pki").deny_list()
    assert after.expires - after.issued_at == before.expires - before.issued_at == 90 * 86_400
    assert (again.code, "on the deny list; nothing was admitted" in again.err) == (3, True)


@pytest.mark.parametrize("length", ["1 s", "2 s", "3 s", "31 d", "2678401 s", "999999999 d"])
def test_an_analyst_begins_with_a_window_that_a_question_may_have_and_with_no_other(
    two: Path, fleetcount: Callable, length: str
) -> None:
    asked(fleetcount, "analyst", "new", "ana")
    text = (two / "ana" / "question.toml").read_text()
    (two / "ana" / "own.toml").write_text(text.replace('"60 s" ', f'"{length}" '))

    begun = fleetcount("analyst", "new", "bob", "--window", length, *BOTH)
    made = fleetcount("question", "create", "--spec", "ana/own.toml", "--output", "own.question")

    assert (begun.code, (two / "bob").exists()) == (made.code, made.code == 0)
    assert begun.code == 0 or f"'{length}' is out of range; it must be 2 s to 31 d" in begun.err


def test_a_party_of_other_operators_or_with_another_question_is_refused(joined: Path, fleetcount: Callable) -> None:
    asked(fleetcount, "relay", "new", "relay", "--host", "relay.example")
    asked(fleetcount, "analyst", "new", "ana")
    (joined / "x").mkdir()
    os.chdir(joined / "x")
    new(fleetcount, "beta")
    os.chdir(joined)
    before = tree(joined)

    anew = fleetcount("relay", "new", "relay", "--host", "relay.example", ALPHA, f"x/{BETA}")
    longer = fleetcount("analyst", "new", "ana", "--window", "90 s", *BOTH)

    assert (anew.code, "relay/aggregators.crt exists already and says something else" in anew.err) == (2, True)
    assert (longer.code, "ana/question.toml exists already and says something else" in longer.err) == (2, True)
    assert tree(joined) == before
