"""A task as people read it: plain values for a JSON file.

It must not be read back: programs exchange the canonical bytes.
"""

from typing import Any

from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.task.domain import SquareGrid
from fleetcount_protocol.task.task import Aggregator, Task

__all__ = ["task_to_json"]


def task_to_json(task: Task) -> dict[str, Any]:
    """Return the task as plain values for a JSON file that people read; fractions as text, keys and ids as hexadecimal.

    There is no way back: programs exchange the canonical bytes.
    """
    release = task.release
    series = task.series
    return {
        "task_id": task.task_id.hex(),
        "series_id": series.series_id.hex(),
        "window": series.index,
        "participants": "noised" if series.noised_participants else "hidden",
        "name": task.name,
        "deployment": task.deployment,
        "signal": task.signal,
        "values": task.values,
        "labels": [task.domain.label(value) for value in range(1, task.values + 1)],
        **_frame_to_json(task),
        "mode": task.mode.name.lower(),
        "mechanism": _mechanism_to_json(task),
        **{name: getattr(task, name) for name in ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")},
        "time_precision_s": task.time_precision_s,
        "min_batch_size": task.min_batch_size,
        "release": {
            "kind": release.kind.label,
            "noise_epsilon": None if release.noise_epsilon is None else str(release.noise_epsilon),
            **({} if release.noise_variance is None else {"noise_variance": str(release.noise_variance)}),
            "level": str(release.level),
            **({} if release.zooms == 1 else {"zooms": release.zooms}),
            "thresholds": list(release.thresholds),
        },
        "upload_style": task.upload_style.name.lower(),
        "verify_key_digest": task.verify_key_digest.hex(),
        "aggregators": [_aggregator_to_json(aggregator) for aggregator in task.aggregators],
    }


def _frame_to_json(task: Task) -> dict[str, Any]:
    domain = task.domain
    if not isinstance(domain, SquareGrid) or domain.frame is None:
        return {}
    frame = domain.frame
    return {"frame": {"epsg": frame.epsg, "offset_x": frame.offset_x, "offset_y": frame.offset_y}}


def _mechanism_to_json(task: Task) -> dict[str, Any] | None:
    mechanism = task.mechanism
    if mechanism is None:
        return None
    kind = task.design.kind
    shown: dict[str, Any] = {"kind": kind.name}
    shown |= {name: str(getattr(mechanism, name)) for name in kind.parameters}
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
