"""Windows, sessions, reports and records for tests, built from a few seeds so that the same call gives the same thing.

Keys here protect nothing.
"""

import hashlib
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.levels import neighbouring_sides
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    Flips,
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import SessionSecret
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import Instalment
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.record import Cell, ReleaseRecord
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import (
    Bins,
    Categories,
    Cross,
    H3Cells,
    Numbers,
    Part,
    Prefixes,
    SingleDomain,
    SquareGrid,
)
from fleetcount_protocol.window.fields import (
    Aggregator,
    CoarserLevel,
    HpkeKey,
    LevelKind,
    Mode,
    QuestionRef,
    Release,
    ReleaseKind,
    UploadStyle,
)
from fleetcount_protocol.window.frame import Frame
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")


def seed_bytes(text: str, size: int = 32) -> bytes:
    """Return bytes that depend on the text only."""
    return hashlib.shake_128(text.encode()).digest(size)


def signing_key(position: int) -> Ed25519PrivateKey:
    """Return the signing key of the aggregator at `position`."""
    return Ed25519PrivateKey.from_private_bytes(seed_bytes(f"signing {position}"))


def key_pair(position: int) -> HpkeKeyPair:
    """Return the sealing key pair of the aggregator at `position`; key ids differ."""
    return HpkeKeyPair(position + 1, seed_bytes(f"sealing {position}"))


def keyed_aggregator(position: int) -> Aggregator:
    """Return the aggregator at `position` with its sealing key, as a device fills it in."""
    pair = key_pair(position)
    return replace(aggregator(position), hpke_keys=(HpkeKey(key_id=pair.key_id, public_key=pair.public_key),))


def hybrid_aggregator(position: int) -> Aggregator:
    """Return the aggregator at `position` with a sealing key of both kinds in one, id 7."""
    pair = HpkeKeyPair(7, seed_bytes("hybrid", 96))
    return replace(aggregator(position), hpke_keys=(HpkeKey(key_id=7, public_key=pair.public_key),))


def aggregator(position: int) -> Aggregator:
    """Return the aggregator at `position` as windows name it."""
    return Aggregator(
        aggregator_id=AggregatorId(NAMES[position]),
        operator=f"Operator {NAMES[position]}",
        grpc_endpoint=f"127.0.0.1:{7411 + position}",
        mqtt_broker="broker.example:1884",
        hpke_keys=(),
        signing_public_key=signing_key(position).public_key().public_bytes_raw(),
    )


def sampling_window(parties: int = 2, **changes: Any) -> Window:
    """Return the first window of two rounds over a grid of six squares, with the named fields changed."""
    fields: dict[str, Any] = {
        "name": "Where are you now?",
        "deployment": "bologna",
        "signal": "Vehicle.CurrentLocation",
        "domain": SquareGrid(x0=Fraction(-5, 2), y0=Fraction(0), size=Fraction(250), columns=3, rows=2),
        "mode": Mode.SAMPLING,
        "mechanism": SamplingDie.uniform(Fraction(1, 4), 6),
        "aggregators": tuple(aggregator(position) for position in range(parties)),
        "round_one_opens": 1_800_000_000,
        "round_one_closes": 1_800_000_600,
        "round_two_closes": 1_800_001_200,
        "expiry": 1_800_086_400,
        "time_precision_s": 60,
        "min_batch_size": 10,
        "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(17, 10), level=Fraction(19, 20)),
        "upload_style": UploadStyle.TWO_INSTALMENTS,
        "verify_key_digest": Digest(seed_bytes("verify key digest")),
        "question": QuestionRef(question_id=QuestionId(seed_bytes("question")), index=0),
    }
    return Window(**(fields | changes))


def one_round_window(mode: Mode, **changes: Any) -> Window:
    """Return the first window of one round of a yes/no question, with the named fields changed."""
    fields: dict[str, Any] = {
        "name": "Faster than 50 km/h?",
        "signal": "Vehicle.Speed",
        "domain": Bins(edges=(Fraction(50),), open_above=True, unit="km/h"),
        "mode": mode,
        "mechanism": Mangat(Fraction(1, 3)) if mode is Mode.RESPONSE else None,
        "round_two_closes": 1_800_000_600,
    }
    return sampling_window(**(fields | changes))


def at_window(window: Window, index: int = 5, *, noised_participants: bool = False, **changes: Any) -> Window:
    """Return the window as a later window of its question, with the named fields changed."""
    ref = replace(window.question, index=index, noised_participants=noised_participants)
    return replace(window, **({"question": ref} | changes))


def at_zooms(release: Release, count: int) -> Release:
    """Return the release at so many zooms, each of twice the side of the one before, all with the cells' noise."""
    parameter = release.noise_epsilon if release.noise_variance is None else release.noise_variance
    assert parameter is not None
    coarser = tuple(
        CoarserLevel(kind=LevelKind.ZOOM, number=side, noise=parameter) for side in neighbouring_sides(count)[1:]
    )
    return replace(release, coarser=coarser)


def with_total(release: Release, ratio: int = 1) -> Release:
    """Return the release with a total too, of so many times the cells' variance, or of an epsilon divided by it."""
    parameter = release.noise_epsilon if release.noise_variance is None else release.noise_variance
    assert parameter is not None
    noise = parameter / ratio if release.noise_variance is None else parameter * ratio
    return replace(release, coarser=(*release.coarser, CoarserLevel(kind=LevelKind.TOTAL, noise=noise)))


def with_margins(release: Release, dimensions: int) -> Release:
    """Return the release with the margins of so many dimensions, all with the cells' noise, and a total as fine."""
    parameter = release.noise_epsilon if release.noise_variance is None else release.noise_variance
    assert parameter is not None
    margins = (CoarserLevel(kind=LevelKind.MARGIN, number=1 + one, noise=parameter) for one in range(dimensions))
    return with_total(replace(release, coarser=tuple(margins)))


def with_weighted_sum(release: Release, values: int) -> Release:
    """Return the release with the weighted sum of so many values, which loses as much as the cells do."""
    assert release.noise_variance is not None
    noise = release.noise_variance * 2 * (values - 1) ** 2
    return replace(release, coarser=(*release.coarser, CoarserLevel(kind=LevelKind.WEIGHTED, noise=noise)))


def crossed(*domains: SingleDomain) -> Cross:
    """Return a cross of domains, of signals named by their kinds."""
    signals: dict[type, str] = {Bins: "Vehicle.Speed", Categories: "Vehicle.Category"}
    parts = (Part(signal=signals.get(type(one), "Vehicle.CurrentLocation"), domain=one) for one in domains)
    return Cross(parts=tuple(parts))


def every_window() -> dict[str, Window]:
    """Return one window of every kind of domain, mechanism, release and upload style."""
    exact = Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(9, 10))
    one_sided = Release(kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(1, 2), level=Fraction(1, 2), thresholds=(3,))
    gaussian = Release(
        kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(1324, 2), level=Fraction(9, 10)
    )
    colours = Categories(names=("rot", "grün", "blå"))
    faces = (Fraction(1, 2), Fraction(1, 8), Fraction(1, 8))
    die = SamplingDie(sampling_rate=Fraction(1, 4), values=2, face_probabilities=faces)
    speeds = Bins(edges=(Fraction(0), Fraction(61, 2), Fraction(50)), open_above=False, unit="km/h")
    cells = H3Cells(resolution=9, cells=(0x891EA6D6533FFFF, 0x891EA6D6537FFFF))
    rounds = {"round_two_closes": 1_800_000_600}
    grid = SquareGrid(x0=Fraction(0), y0=Fraction(-1), size=Fraction(125), columns=4, rows=8)
    frame = Frame(epsg=25832, offset_x="-683195.58", offset_y="-4928877.56")
    return {
        "sampling_grid": sampling_window(),
        "sampling_framed": sampling_window(domain=replace(grid, columns=3, rows=2, frame=frame)),
        "sampling_five": sampling_window(5),
        "sampling_faces_bins": sampling_window(domain=speeds, mechanism=die),
        "sampling_h3_envelope": sampling_window(
            domain=cells,
            mechanism=SamplingDie.uniform(Fraction(1, 10), 2),
            upload_style=UploadStyle.ONE_ENVELOPE,
            **rounds,
        ),
        "sampling_exact": sampling_window(3, release=exact),
        "sampling_places": sampling_window(
            domain=Prefixes(bits=32, cells=(0, 7, 2**32 - 1)), mechanism=SamplingDie.uniform(Fraction(1, 4), 3)
        ),
        "direct_codes": one_round_window(
            Mode.DIRECT, domain=Prefixes(bits=9, cells=(0x006, 0x007, 0x1FE), codes=Codes(form=CodeForm.DTC))
        ),
        "direct_texts": one_round_window(
            Mode.DIRECT,
            domain=Prefixes(
                bits=5, cells=(8, 15, 22, 24, 31), codes=Codes(form=CodeForm.TEXT, alphabet="XBA", length=3)
            ),
        ),
        "direct_cross": one_round_window(
            Mode.DIRECT,
            signal="Vehicle.Speed",
            domain=crossed(speeds, replace(grid, columns=3, rows=2, frame=frame), colours),
            release=with_total(gaussian),
        ),
        "direct_margins": one_round_window(
            Mode.DIRECT, signal="Vehicle.Speed", domain=crossed(speeds, colours), release=with_margins(gaussian, 2)
        ),
        "three_margins": one_round_window(
            Mode.DIRECT,
            signal="Vehicle.Speed",
            domain=crossed(speeds, replace(grid, columns=3, rows=2), colours),
            release=with_margins(
                Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20)), 3
            ),
        ),
        "sampling_cross": sampling_window(
            signal="Vehicle.Speed", domain=crossed(speeds, cells), mechanism=SamplingDie.uniform(Fraction(1, 4), 4)
        ),
        "sampling_no_broker": sampling_window(aggregators=(aggregator(0), replace(aggregator(1), mqtt_broker=""))),
        "mangat": one_round_window(Mode.RESPONSE),
        "warner": one_round_window(Mode.RESPONSE, mechanism=Warner(Fraction(3, 4))),
        "two_coin": one_round_window(Mode.RESPONSE, mechanism=TwoCoin(Fraction(4, 5), Fraction(1, 5))),
        "k_ary": one_round_window(Mode.RESPONSE, domain=colours, mechanism=KaryResponse(Fraction(1, 2), 3)),
        "mangat_vector": one_round_window(Mode.RESPONSE, domain=colours, mechanism=MangatVector(Fraction(1, 3), 3)),
        "unary": one_round_window(Mode.RESPONSE, domain=colours, mechanism=OptimizedUnaryEncoding(Fraction(1, 4), 3)),
        "asymmetric": one_round_window(
            Mode.RESPONSE, domain=colours, mechanism=AsymmetricVector(Fraction(1, 3), tuple(Flips))
        ),
        "direct": one_round_window(Mode.DIRECT, domain=colours),
        "direct_set": one_round_window(Mode.DIRECT, domain=replace(colours, most=2)),
        "direct_holders": one_round_window(Mode.DIRECT, domain=replace(colours, most=2), release=with_total(gaussian)),
        "one_sided": one_round_window(Mode.DIRECT, release=one_sided),
        "one_sided_down": one_round_window(Mode.DIRECT, release=replace(one_sided, direction="down")),
        "sampling_gaussian": sampling_window(release=gaussian),
        "direct_numbers": one_round_window(
            Mode.DIRECT,
            domain=Numbers(low=Fraction(0), high=Fraction(61, 2), values=3, unit="km/h"),
            release=with_total(gaussian),
        ),
        "direct_mean": one_round_window(
            Mode.DIRECT,
            domain=Numbers(low=Fraction(0), high=Fraction(61, 2), values=9, unit="km/h"),
            release=with_total(with_weighted_sum(gaussian, 9)),
        ),
        "numbers_zooms": one_round_window(
            Mode.DIRECT,
            domain=Numbers(low=Fraction(0), high=Fraction(35), values=8, unit="km/h"),
            release=with_total(at_zooms(gaussian, 3)),
        ),
        "direct_gaussian": one_round_window(Mode.DIRECT, domain=colours, release=gaussian),
        "direct_zooms": one_round_window(Mode.DIRECT, domain=grid, release=at_zooms(gaussian, 3)),
        "sampling_zooms": sampling_window(
            domain=replace(grid, columns=4, rows=2),
            mechanism=SamplingDie.uniform(Fraction(1, 4), 8),
            release=at_zooms(Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20)), 2),
        ),
        "direct_total": one_round_window(Mode.DIRECT, domain=colours, release=with_total(gaussian)),
        "sampling_total": sampling_window(release=with_total(gaussian, 4)),
        "zooms_and_total": one_round_window(Mode.DIRECT, domain=grid, release=with_total(at_zooms(gaussian, 2))),
        "bins_zooms": one_round_window(
            Mode.DIRECT,
            domain=Bins(edges=tuple(map(Fraction, range(0, 80, 10))), open_above=True, unit="km/h"),
            release=with_total(at_zooms(gaussian, 3)),
        ),
        "one_sided_zooms": one_round_window(
            Mode.DIRECT,
            domain=replace(grid, columns=2, rows=4),
            release=at_zooms(replace(one_sided, thresholds=(3,) * 8 + (9, 10)), 2),
        ),
    }


def trusted(window: Window) -> dict[AggregatorId, TrustedAggregator]:
    """Return trust in every aggregator of the window."""
    return {
        one.aggregator_id: TrustedAggregator(
            aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key
        )
        for one in window.aggregators
    }


def session_secret(name: str = "session") -> SessionSecret:
    """Return a session with aggregator alpha."""
    return SessionSecret(
        session_id=SessionId(seed_bytes(f"{name} id", 16)),
        aggregator_id=AggregatorId("alpha"),
        secret=seed_bytes(f"{name} secret"),
        receipt_key=seed_bytes(f"{name} receipt key"),
        expiry=1_800_086_400,
    )


def instalment(**changes: Any) -> Instalment:
    """Return a round-two instalment with the named fields changed (its ciphertext is no sealed text)."""
    fields: dict[str, Any] = {
        "window_id": WindowId(seed_bytes("window")),
        "report_id": ReportId(seed_bytes("report", 16)),
        "session_id": SessionId(seed_bytes("session id", 16)),
        "key_number": 515,
        "round": 2,
        "public_share": seed_bytes("public share", 64),
        "ciphertext": seed_bytes("ciphertext", 48),
    }
    return Instalment(**(fields | changes))


def statement() -> tuple[AdversaryView, ...]:
    """Return a statement of two views, one without a finite epsilon."""
    return (
        AdversaryView(
            adversary="public_and_broker",
            audience="everyone who reads the release",
            epsilon=Decimal("0.97930"),
            delta=Decimal(0),
            neighbours="two-cell",
            sentence="Noised counts: ε = 0.97930.",
        ),
        AdversaryView(
            adversary="all_aggregators",
            audience="all 2 aggregators together",
            epsilon=None,
            delta=Decimal("0.25"),
            neighbours="two-cell",
            sentence="Revealed with probability 0.25.",
        ),
    )


def record(window: Window | None = None, **changes: Any) -> ReleaseRecord:
    """Return a record of the window with made-up numbers and the named fields changed."""
    window = window or sampling_window()
    cells = tuple(
        Cell(
            value=value,
            label=window.label(value),
            raw=7 * value - 9,
            estimate=Fraction(7 * value - 9, 3) * 2**70,
            low=max(0, 7 * value - 20),
            high=7 * value + 12,
        )
        for value in range(1, window.design.cell_count + 1)
    )
    reasons = ("missed", "paused", "paused")
    missing = tuple(MissingWindow(index=one, reason=reasons[one % 3]) for one in range(window.question.index))
    fields: dict[str, Any] = {
        "window": window,
        "chain": ChainLink(previous=None, previous_index=None, missing=missing),
        "cells": cells,
        "statement": statement(),
        "released_at": window.round_two_closes + 120,
        "baseline_raw": -4 if window.mode is Mode.RESPONSE else None,
    }
    return ReleaseRecord(**(fields | changes))
