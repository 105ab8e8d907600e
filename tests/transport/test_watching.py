"""What a server notices of others: since when something is well or not, and when its certificates end."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from fleetcount_protocol.channel.certificates import CertificateAuthority, save_certificates
from fleetcount_transport.watching import Conditions, certificate_ends, days_left, duration, ended, gauge
from structlog.testing import capture_logs


class Ticks:
    """A monotonic clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_complaint_says_since_when_and_goes_on_counting_while_its_text_changes() -> None:
    clock = Ticks()
    conditions = Conditions(clock)

    assert conditions.complaint("peer", "beta") == "not known yet"
    conditions.note("peer", name="beta")
    assert (conditions.complaint("peer", "beta"), conditions.is_well("peer", "beta")) == ("", True)
    clock.now += 50
    conditions.note("peer", "unreachable", name="beta")
    clock.now += 30
    conditions.note("peer", "no answer in time", name="beta")
    clock.now += 10

    assert conditions.complaint("peer", "beta") == "no answer in time since 40 s"
    assert not conditions.is_well("peer", "beta")
    assert conditions.complaint("peer", "gamma") == "not known yet"
    conditions.note("peer", name="beta")
    assert conditions.complaint("peer", "beta") == ""


def test_who_was_well_a_moment_ago_need_not_be_asked() -> None:
    clock = Ticks()
    conditions = Conditions(clock)
    conditions.note("peer", name="beta")
    conditions.note("peer", "unreachable", name="gamma")
    clock.now += 9

    assert conditions.is_fresh("peer", "beta", 10)
    assert not conditions.is_fresh("peer", "gamma", 10)
    clock.now += 1
    assert not conditions.is_fresh("peer", "beta", 10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (40.9, "40 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_200, "2 h"),
        (86_400, "24 h"),
        (400_000, "4 days"),
    ],
)
def test_a_duration_is_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_days_that_certificates_have_left_are_those_of_now(tmp_path: Path) -> None:
    short = CertificateAuthority.create("one", validity=timedelta(days=30)).certificate
    long = CertificateAuthority.create("two", validity=timedelta(days=300)).certificate
    save_certificates(tmp_path / "both.crt", [long, short])
    save_certificates(tmp_path / "long.crt", [long])

    ends = certificate_ends({"own": tmp_path / "both.crt", "device_ca": tmp_path / "long.crt"})

    end = short.not_valid_after_utc.timestamp()
    assert days_left(ends, end - 86_400) == {"own": 1, "device_ca": pytest.approx(271, abs=0.1)}
    assert ended(ends, end - 1) == ""
    assert ended(ends, end) == "ended: own"


def test_who_starts_with_a_certificate_that_has_ended_reads_so_in_its_log(tmp_path: Path) -> None:
    for name, validity in (("own", timedelta(seconds=1)), ("device_ca", timedelta(days=30))):
        save_certificates(tmp_path / name, [CertificateAuthority.create(name, validity=validity).certificate])

    with capture_logs() as logs:
        ends = certificate_ends({name: tmp_path / name for name in ("own", "device_ca")})

    told = {"event": "certificate_ended", "log_level": "error", "certificate": "own", "file": str(tmp_path / "own")}
    assert logs == [told | {"ended": round(ends["own"])}]


def test_a_gauge_has_one_label_or_none() -> None:
    [one, two] = gauge("state", "S.", "check", {"a": True, "b": 0.5}).samples
    [alone] = gauge("free", "F.", "", {"": 7}).samples

    assert (one.labels, one.value, two.labels, two.value) == ({"check": "a"}, 1.0, {"check": "b"}, 0.5)
    assert (alone.name, alone.labels, alone.value) == ("free", {}, 7.0)


def test_a_certificate_that_is_renewed_has_its_new_end_and_a_file_that_is_gone_its_last(tmp_path: Path) -> None:
    path = tmp_path / "own.crt"
    ends: list[float] = []
    found = None
    for number, days in enumerate((30, 60)):
        leaf = CertificateAuthority.create("one", validity=timedelta(days=days)).certificate
        path.unlink(missing_ok=True)
        save_certificates(path, [leaf])
        os.utime(path, ns=(number, number))  # Two files of one moment are told apart by nothing else.
        found = found or certificate_ends({"own": path})
        assert dict(found) == {"own": leaf.not_valid_after_utc.timestamp()}
        ends.append(found["own"])
    path.unlink()

    assert found is not None
    assert found["own"] == ends[1] > ends[0]
    with pytest.raises(OSError, match=r"own\.crt"):
        certificate_ends({"own": path})
