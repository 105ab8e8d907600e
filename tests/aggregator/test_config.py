"""An aggregator's configuration: wrong ones are refused in one line that names the key, before anything starts."""

import base64
import os
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.host.keys import KeyRing, load_hpke_key, load_signing_key
from fleetcount_aggregator.process.app import build_identity
from fleetcount_protocol.channel.certificates import CertificateAuthority, key_pem, save_certificates
from fleetcount_protocol.errors import UsageError
from fleetcount_transport.failpoints import failpoints_from_environment
from fleetcount_transport.toml_table import ConfigError

from tests.support.refusals import said_by

PEER_KEY = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()
THIRD_KEY = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()

GOOD = f"""
[aggregator]
id = "alpha"
operator = "City"
deployment = "bologna"
state_directory = "state"
question_directory = "windows"
[keys]
signing_key_file = "signing.key"
hpke_key_directory = "hpke"
[tls]
certificate_file = "a.crt"
key_file = "a.key"
aggregator_ca_file = "aggregators.crt"
device_ca_file = "devices.crt"
[grpc]
device_listen = "127.0.0.1:0"
peer_listen = "127.0.0.1:0"
[[peers]]
id = "beta"
operator = "University"
endpoint = "127.0.0.1:7422"
signing_public_key = "{PEER_KEY}"
[limits]
largest_epsilon = "4"
"""
SECOND_PEER = f"""
[[peers]]
id = "gamma"
operator = "Region"
endpoint = "127.0.0.1:7423"
signing_public_key = "{THIRD_KEY}"
"""


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "aggregator.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_sample_s_form_is_read_and_paths_are_taken_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, GOOD + '[mqtt]\nbroker = "127.0.0.1:1884"\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("aggregator.toml"), {})
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert config.keys.signing_key_file == tmp_path / "signing.key"
    assert config.aggregator.state_directory == tmp_path / "state"
    assert config.mqtt is not None
    assert path.exists()


def test_the_shipped_sample_is_valid_but_for_its_key(tmp_path: Path) -> None:
    sample = (Path(__file__).parents[2] / "deploy" / "sample" / "aggregator.toml").read_text()

    with pytest.raises(ConfigError, match=r"line \d+: peers\[0\]\.signing_public_key is 'base64 of 32 bytes'"):
        load_config(write(tmp_path, sample), {})
    assert load_config(write(tmp_path, sample.replace("base64 of 32 bytes", PEER_KEY)), {}).aggregator.id == "alpha"


def change(old: str, new: str) -> Callable[[], str]:
    def changed() -> str:
        assert old in GOOD, old
        return GOOD.replace(old, new)

    return changed


BAD: dict[str, tuple[Callable[[], str | bytes], str]] = {
    "unknown key": (
        change("question_directory", "questions_directory"),
        "questions_directory is unknown; did you mean 'question_d",
    ),
    "unknown table": (lambda: GOOD + "[grcp]\n", "grcp is unknown; did you mean 'grpc'"),
    "a deny list from two places": (
        change(
            'device_ca_file = "devices.crt"', 'device_ca_file = "d"\ndeny_list_file = "x"\ndeny_list_url = "https://x/"'
        ),
        "tls.deny_list_file and tls.deny_list_url are both given; allowed: one of them",
    ),
    "a deny list that is no URL": (
        change('device_ca_file = "devices.crt"', 'device_ca_file = "d"\ndeny_list_url = "file:///etc/passwd"'),
        "deny_list_url is 'file:///etc/passwd'",
    ),
    "unknown limit": (lambda: GOOD + "largest_epsilom = 3\n", "did you mean 'largest_epsilon'"),
    "unknown key of a peer": (
        change('endpoint = "127.0.0.1:7422"', 'endpoint = "127.0.0.1:7422"\nurl = "x"'),
        r"peers\[0\].url is unknown",
    ),
    "a key that overlaps itself": (
        change('signing_key_file = "signing.key"', 'signing_key_file = "signing.key"\nrotate_s = 100\noverlap_s = 51'),
        r"keys.overlap_s is 51; allowed is at most half of rotate_s \(100\)",
    ),
    "an overlap of two days by default": (
        change('signing_key_file = "signing.key"', 'signing_key_file = "signing.key"\nrotate_s = 86400'),
        r"keys.overlap_s is 172800; allowed is at most half of rotate_s \(86400\)",
    ),
    "an overlap without a rotation": (
        change('signing_key_file = "signing.key"', 'signing_key_file = "signing.key"\noverlap_s = 50'),
        "keys.overlap_s is 50; allowed only with rotate_s",
    ),
    "a certificate for a broker without TLS": (
        lambda: GOOD + '[mqtt]\nbroker = "127.0.0.1:1884"\ncertificate_file = "a.crt"\nkey_file = "a.key"\n',
        "mqtt.certificate_file is given; allowed is ca_file with certificate_file and key_file",
    ),
    "the key of no certificate": (
        lambda: GOOD + '[mqtt]\nbroker = "127.0.0.1:1884"\nca_file = "b.crt"\nkey_file = "a.key"\n',
        "mqtt.key_file is given; allowed is ca_file with certificate_file and key_file",
    ),
    "missing key": (change('operator = "City"\n', ""), "aggregator.operator is missing"),
    "no budget": (change('largest_epsilon = "4"', ""), "limits.largest_epsilon is missing"),
    "duplicate key": (change('id = "alpha"', 'id = "alpha"\nid = "alpha"'), "not TOML"),
    "wrong type": (change('id = "alpha"', "id = 7"), "aggregator.id is 7"),
    "id in capitals": (change('id = "alpha"', 'id = "Alpha"'), "aggregator.id is 'Alpha'"),
    "sure posterior": (change('"4"', '"4"\nlargest_posterior = "1"'), "limits.largest_posterior is '1'"),
    "float epsilon": (change('"4"', "4.5"), "limits.largest_epsilon is 4.5"),
    "zero epsilon": (change('"4"', '"0"'), "above 0"),
    "negative epsilon": (change('"4"', '"-1"'), "largest_epsilon is '-1'"),
    "epsilon with a comma": (change('"4"', '"1,5"'), "largest_epsilon is '1,5'"),
    "epsilon in full-width digits": (change('"4"', '"４"'), "largest_epsilon"),
    "epsilon nan": (change('"4"', '"nan"'), "largest_epsilon is 'nan'"),
    "min batch 1": (lambda: GOOD + "smallest_min_batch_size = 1\n", "smallest_min_batch_size is 1"),
    "bool as text": (lambda: GOOD + 'allow_exact_release = "no"\n', "allow_exact_release is 'no'"),
    "port too large": (change("127.0.0.1:7422", "127.0.0.1:70000"), "peers\\[0\\].endpoint is '127.0.0.1:70000'"),
    "port zero of a peer": (change("127.0.0.1:7422", "127.0.0.1:0"), "1 to 65535"),
    "no port": (change("127.0.0.1:7422", "127.0.0.1"), "host:port"),
    "url for an endpoint": (change("127.0.0.1:7422", "http://127.0.0.1:7422"), "host:port"),
    "peer is self": (change('id = "beta"', 'id = "alpha"'), "this aggregator itself"),
    "peer twice": (lambda: GOOD + SECOND_PEER.replace("gamma", "beta"), "'beta' occurs twice"),
    "key twice": (lambda: GOOD + SECOND_PEER.replace(THIRD_KEY, PEER_KEY), "signing_public_key .* twice"),
    "endpoint twice": (lambda: GOOD + SECOND_PEER.replace("7423", "7422"), "endpoint .* twice"),
    "peer at our own address": (
        change('peer_listen = "127.0.0.1:0"', 'peer_listen = "127.0.0.1:7422"'),
        "is this aggregator's own",
    ),
    "one port for both": (
        lambda: GOOD.replace('"127.0.0.1:0"', '"127.0.0.1:7000"'),
        "same as grpc.device_listen",
    ),
    "short public key": (change(PEER_KEY, "AAAA"), "base64 of 32 bytes"),
    "plaintext beyond loopback": (
        lambda: GOOD.replace('device_listen = "127.0.0.1:0"', 'insecure = true\ndevice_listen = "0.0.0.0:0"'),
        "only loopback",
    ),
    "plaintext broker beyond loopback": (lambda: GOOD + '[mqtt]\nbroker = "10.0.0.1:1883"\n', "ca_file"),
    "plaintext beside an authority": (
        lambda: GOOD + '[mqtt]\nbroker = "10.0.0.1:1883"\nca_file = "ca.crt"\ninsecure = true\n',
        "mqtt.insecure is true; allowed is only without ca_file",
    ),
    "slots of a store in a file": (
        lambda: GOOD + '[mqtt]\nbroker = "127.0.0.1:1883"\nslots = 2\n',
        "mqtt.slots is 2 and store.url is missing; .*: allowed is 1",
    ),
    "no slot": (
        lambda: GOOD + '[mqtt]\nbroker = "127.0.0.1:1883"\nslots = 0\n',
        "mqtt.slots is 0; allowed is a whole number from 1 to 16",
    ),
    "more slots than buckets": (
        lambda: GOOD + '[mqtt]\nbroker = "127.0.0.1:1883"\nslots = 17\n',
        "mqtt.slots is 17; allowed is a whole number from 1 to 16",
    ),
    "metrics beyond loopback": (lambda: GOOD + '[metrics]\nlisten = "0.0.0.0:9000"\n', "metrics.listen"),
    "a former store key without a new one": (
        change('signing_key_file = "signing.key"', 'signing_key_file = "signing.key"\nformer_store_key_file = "old"'),
        "keys.store_key_file is missing, or the same as former_store_key_file",
    ),
    "a store's URL with a password": (
        lambda: GOOD + '[store]\nurl = "postgresql://alpha:hunter2@db/alpha"\n',
        "store.url holds a password; allowed is a URL without one",
    ),
    "a store's password in a query": (
        lambda: GOOD + '[store]\nurl = "postgresql://db/alpha?password=hunter2"\n',
        "store.url holds a password",
    ),
    "another database": (
        lambda: GOOD + '[store]\nurl = "mysql://db/alpha"\n',
        "store.url is 'mysql://db/alpha'; allow",
    ),
    "no database": (lambda: GOOD + '[store]\nurl = "postgresql://db"\n', "allowed is postgresql://"),
    "another machine in plaintext perhaps": (
        lambda: GOOD + '[store]\nurl = "postgresql://db.example/alpha"\n',
        "store.url names another machine and no sslmode",
    ),
    "another machine in a query": (
        lambda: GOOD + '[store]\nurl = "postgresql:///alpha?host=/run/postgresql,db.example"\n',
        "names another machine and no sslmode",
    ),
    "a port that is none": (lambda: GOOD + '[store]\nurl = "postgresql://db:x/alpha"\n', "store.url is no URL"),
    "a password of no server": (lambda: GOOD + '[store]\npassword_file = "p"\n', "store.url is missing"),
    "a database without a key of its own": (
        lambda: GOOD + '[store]\nurl = "postgresql://db/alpha?sslmode=verify-full"\n',
        "keys.store_key_file is missing; a store in PostgreSQL needs a key of its own",
    ),
    "log level typo": (lambda: GOOD + '[log]\nlevel = "inof"\n', "log.level is 'inof'"),
    "negative time": (lambda: GOOD + "give_up_s = -1\n", "give_up_s is -1"),
    "deadline above the give-up time": (lambda: GOOD + "give_up_s = 5\ncall_timeout_s = 10\n", "call_timeout_s is 10"),
    "not UTF-8": (lambda: b"\xff\xfe[a]", "not UTF-8"),
    "deep nesting": (lambda: "a = " + "[" * 100_000, "not TOML"),
    "too long": (lambda: "#" * 1_100_000, "no configuration"),
}


def test_a_wrong_configuration_is_refused_in_one_line(tmp_path: Path) -> None:
    for name, (make, expected) in BAD.items():
        said = said_by(ConfigError, load_config, write(tmp_path, make()), {})

        assert re.search(expected, said), name
        assert "\n" not in said, name
        assert "hunter2" not in said, name


def test_a_store_s_place_is_a_file_or_a_url_as_it_is_written(tmp_path: Path) -> None:
    own = GOOD.replace('"signing.key"', '"signing.key"\nstore_key_file = "store.key"')
    url = "postgresql:///alpha?host=/run/postgresql"

    file = load_config(write(tmp_path, GOOD), {}).store_place
    server = load_config(write(tmp_path, f'{own}[store]\nurl = "{url}"\npassword_file = "p"\n'), {}).store_place

    assert (file.url, file.file) == (None, tmp_path / "state" / "aggregator.db")
    assert (server.url, server.name, server.password_file) == (url, "postgresql:///alpha", tmp_path / "p")


def test_each_slot_has_a_certificate_of_its_own_beside_the_first(tmp_path: Path) -> None:
    own = GOOD.replace('"signing.key"', '"signing.key"\nstore_key_file = "store.key"')
    mqtt = '[mqtt]\nbroker = "127.0.0.1:1883"\nslots = 3\n'
    files = 'ca_file = "ca.crt"\ncertificate_file = "keys/alpha.crt"\nkey_file = "keys/alpha.key"\n'
    store = '[store]\nurl = "postgresql:///alpha"\n'

    named = load_config(write(tmp_path, own + mqtt + files + store), {}).mqtt
    none = load_config(write(tmp_path, own + mqtt + store), {}).mqtt

    assert named is not None
    assert named.slots == 3
    keys = tmp_path / "keys"
    assert named.credential(0) == (keys / "alpha.crt", keys / "alpha.key")
    assert named.credential(2) == (keys / "alpha-slot2.crt", keys / "alpha-slot2.key")
    assert none is not None
    assert none.credential(0) == none.credential(2) == (None, None)


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a file"):
        load_config(tmp_path / name, {})


def test_the_environment_overrides_but_never_keys_or_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.setenv("FLEETCOUNT_GRPC__DEVICE_LISTEN", "127.0.0.1:7999")

    assert load_config(path, os.environ).grpc.device_listen == "127.0.0.1:7999"
    for name in (
        "FLEETCOUNT_KEYS__SIGNING_KEY_FILE",
        "FLEETCOUNT_TLS__KEY_FILE",
        "FLEETCOUNT_PEERS",
        "fleetcount_keys",
    ):
        with pytest.raises(ConfigError, match="file alone"):
            load_config(path, {name: "x"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ADMISSION__CALLS", "17", 17),
        ("WORKERS__COUNT", "2", 2),
        ("LIMITS__ALLOW_EXACT_RELEASE", "true", True),
        ("LIMITS__ALLOW_EXACT_RELEASE", "false", False),
        ("LIMITS__GIVE_UP_S", "1200.5", 1200.5),
        ("LIMITS__LARGEST_EPSILON", "0.5", Decimal("0.5")),
        ("LOG__LEVEL", "error", "error"),
        ("fleetcount_workers__count", "3", 3),
    ],
)
def test_a_variable_is_read_as_what_its_key_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    full = name if name.startswith("fleetcount") else f"FLEETCOUNT_{name}"
    monkeypatch.setenv(full, text)

    config = load_config(write(tmp_path, GOOD), os.environ)

    table, key = full.lower().removeprefix("fleetcount_").split("__")
    found = getattr(getattr(config, table), key)
    assert (type(found), found) == (type(value), value)


def test_variables_alone_can_say_how_to_reach_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETCOUNT_MQTT__BROKER", "127.0.0.1:1883")
    monkeypatch.setenv("FLEETCOUNT_MQTT__INFLIGHT", "1000")

    mqtt = load_config(write(tmp_path, GOOD), os.environ).mqtt

    assert mqtt is not None
    assert mqtt.inflight == 1000


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("WORKERS__COUNT", "two", r"^FLEETCOUNT_WORKERS__COUNT is 'two'; allowed is a whole number from 1 to 256$"),
        ("WORKERS__COUNT", "2.0", "allowed is a whole number"),
        ("WORKERS__COUNT", " 2", "allowed is a whole number"),
        ("WORKERS__COUNT", "", "allowed is a whole number"),
        ("WORKERS__COUNT", "9" * 40, "allowed is a whole number"),
        ("WORKERS__COUNT", "0", "^FLEETCOUNT_WORKERS__COUNT is '0'; allowed is a whole number from 1 to 256$"),
        ("LIMITS__ALLOW_EXACT_RELEASE", "1", "LIMITS__ALLOW_EXACT_RELEASE is '1'; allowed is true or false"),
        ("LIMITS__ALLOW_EXACT_RELEASE", "True", "allowed is true or false"),
        (
            "LIMITS__GIVE_UP_S",
            "soon",
            "^FLEETCOUNT_LIMITS__GIVE_UP_S is 'soon'; allowed is a number of seconds",
        ),
        ("WORKERS__COUNTS", "2", "^FLEETCOUNT_WORKERS__COUNTS is unknown; did you mean 'count'"),
        ("WORKERS", '{"count": 2}', r"^FLEETCOUNT_WORKERS is a whole table; allowed is one key of it, .*__<KEY>$"),
        ("WROKERS__COUNT", "2", r"^FLEETCOUNT_WROKERS__COUNT: the table 'wrokers' is unknown; did you mean 'workers'"),
        ("GRPC__DEVICE_LISTEN", "here", r"^FLEETCOUNT_GRPC__DEVICE_LISTEN is 'here'; allowed is host:port"),
        ("LOG__LEVEL", "inof", r"^FLEETCOUNT_LOG__LEVEL is 'inof'; allowed is .*did you mean 'info'"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_with_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setenv(f"FLEETCOUNT_{name}", text)

    with pytest.raises(ConfigError, match=said) as refusal:
        load_config(write(tmp_path, GOOD), os.environ)

    assert "\n" not in str(refusal.value)


def test_a_number_in_quotes_in_the_file_is_no_number_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workers\.count is '2'"):
        load_config(write(tmp_path, GOOD + '\n[workers]\ncount = "2"\n'), {})


# Key files.


def secret(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path / "signing.key", key_pem(Ed25519PrivateKey.generate()), mode)

    with pytest.raises(UsageError, match=f"mode {mode:04o}"):
        load_signing_key(path)


def test_a_key_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="allowed: an Ed25519 key"):
        load_signing_key(secret(tmp_path / "signing.key", key_pem(X25519PrivateKey.generate())))
    with pytest.raises(UsageError, match="allowed: an X25519 key"):
        load_hpke_key(secret(tmp_path / "1.key", key_pem(Ed25519PrivateKey.generate())))
    with pytest.raises(UsageError, match="no readable private key"):
        load_signing_key(secret(tmp_path / "junk.key", b"junk"))
    with pytest.raises(UsageError, match="not a file"):
        load_signing_key(tmp_path / "absent.key")
    with pytest.raises(UsageError, match="is no key"):
        load_signing_key(secret(tmp_path / "long.key", bytes(20_000)))


@pytest.mark.parametrize("name", ["256.key", "x.key", "-1.key", "１.key"])
def test_a_sealing_key_is_named_by_its_id(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="key id from 0 to 255"):
        load_hpke_key(secret(tmp_path / name, key_pem(X25519PrivateKey.generate())))


def test_sealing_keys_come_and_go_with_their_files(tmp_path: Path) -> None:
    first, second = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    secret(tmp_path / "1.key", key_pem(first))
    ring = KeyRing.load(tmp_path)
    secret(tmp_path / "2.key", base64.b64encode(second.private_bytes_raw()))

    assert ring.public_key(2) == second.public_key().public_bytes_raw()
    (tmp_path / "1.key").unlink()
    ring.refresh()

    assert ring.public_key(1) is None


def test_a_directory_without_sealing_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no"):
        KeyRing.load(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        KeyRing.load(tmp_path / "absent")


def test_a_peer_with_our_own_signing_key_is_refused(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    secret(tmp_path / "signing.key", key_pem(key))
    save_certificates(tmp_path / "devices.crt", [CertificateAuthority.create("devices").certificate])
    own = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    build_identity(load_config(write(tmp_path, GOOD), {}))
    with pytest.raises(ConfigError, match="own signing key"):
        build_identity(load_config(write(tmp_path, GOOD.replace(PEER_KEY, own)), {}))


def test_fail_points_work_in_tests_only() -> None:
    armed = {"FLEETCOUNT_FAILPOINT": "intake.before_commit"}

    assert failpoints_from_environment(armed).armed == ""
    assert failpoints_from_environment({**armed, "FLEETCOUNT_TESTING": "1"}).armed == "intake.before_commit"
    with pytest.raises(UsageError, match="not one of"):
        failpoints_from_environment({"FLEETCOUNT_FAILPOINT": "nowhere", "FLEETCOUNT_TESTING": "1"})
