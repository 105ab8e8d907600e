"""A window as plain values for a JSON file that people read; programs exchange the canonical bytes."""

from typing import Any

from fleetcount_mechanisms.responses import AsymmetricVector
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.window.codes import CodeForm
from fleetcount_protocol.window.domain import Cross, Numbers, Part, Prefixes, SquareGrid, ValueDomain, most_of
from fleetcount_protocol.window.fields import Aggregator, CoarserLevel, LevelKind, ReleaseKind, level_name
from fleetcount_protocol.window.window import Window


def window_to_json(window: Window) -> dict[str, Any]:
    """Return the window as plain values for a JSON file: fractions as text, keys and ids in hexadecimal.

    No function reads it back: programs exchange the canonical bytes.
    """
    release, question = window.release, window.question
    levels = [_level_to_json(window.domain, level) for level in release.coarser]
    return {
        "window_id": window.window_id.hex(),
        "question_id": question.question_id.hex(),
        "window": question.index,
        "participants": "noised" if question.noised_participants else "hidden",
        "name": window.name,
        "deployment": window.deployment,
        "signal": window.signal,
        "values": window.values,
        "labels": [window.domain.label(value) for value in range(1, window.values + 1)],
        **_domain_to_json(window.domain),
        "mode": window.mode.name.lower(),
        "mechanism": _mechanism_to_json(window),
        **{
            name: getattr(window, name)
            for name in ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")
        },
        "time_precision_s": window.time_precision_s,
        "min_batch_size": window.min_batch_size,
        "release": {
            "kind": release.kind.label,
            **({"direction": release.direction} if release.kind is ReleaseKind.ONE_SIDED else {}),
            "noise_epsilon": None if release.noise_epsilon is None else str(release.noise_epsilon),
            **({} if release.noise_variance is None else {"noise_variance": str(release.noise_variance)}),
            "level": str(release.level),
            **({"levels": levels} if levels else {}),
            "thresholds": list(release.thresholds),
        },
        "upload_style": window.upload_style.name.lower(),
        "verify_key_digest": window.verify_key_digest.hex(),
        "aggregators": [_aggregator_to_json(aggregator) for aggregator in window.aggregators],
    }


def _domain_to_json(domain: ValueDomain) -> dict[str, Any]:
    if isinstance(domain, Cross):
        return {"parts": [_part_to_json(part) for part in domain.parts]}
    if most_of(domain) > 1:
        return {"most": most_of(domain)}
    if isinstance(domain, Numbers):
        return {"outside": domain.outside.name.lower()}
    if isinstance(domain, Prefixes) and (codes := domain.codes) is not None:
        text = {"alphabet": codes.alphabet, "length": codes.length} if codes.form is CodeForm.TEXT else {}
        return {"codes": {"form": codes.form.label, **text}}
    if not isinstance(domain, SquareGrid) or domain.frame is None:
        return {}
    frame = domain.frame
    return {"frame": {"epsg": frame.epsg, "offset_x": frame.offset_x, "offset_y": frame.offset_y}}


def _part_to_json(part: Part) -> dict[str, Any]:
    labels = [part.domain.label(value) for value in range(1, part.domain.values + 1)]
    return {"signal": part.signal, "labels": labels, **_domain_to_json(part.domain)}


def _level_to_json(domain: ValueDomain, level: CoarserLevel) -> dict[str, Any]:
    named = {"side": level.number} if level.kind is LevelKind.ZOOM else {"level": level_name(domain, level)}
    return {**named, "noise": str(level.noise)}


def _mechanism_to_json(window: Window) -> dict[str, Any] | None:
    mechanism = window.mechanism
    if mechanism is None:
        return None
    kind = window.design.kind
    shown: dict[str, Any] = {"kind": kind.name}
    shown |= {name: str(getattr(mechanism, name)) for name in kind.parameters}
    if isinstance(mechanism, AsymmetricVector):
        shown["flips"] = [one.name.lower() for one in mechanism.flips]
    if isinstance(mechanism, SamplingDie):
        shown["face_probabilities"] = [str(face) for face in mechanism.face_probabilities or ()] or "uniform"
    return shown


def _aggregator_to_json(aggregator: Aggregator) -> dict[str, Any]:
    return {
        "aggregator_id": str(aggregator.aggregator_id),
        "operator": aggregator.operator,
        "grpc_endpoint": aggregator.grpc_endpoint,
        "mqtt_broker": aggregator.mqtt_broker,
        "signing_public_key": aggregator.signing_public_key.hex(),
    }
