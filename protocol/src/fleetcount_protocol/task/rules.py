"""When a task may be asked at all, and what follows from it: circuit, context, privacy statement.

Knows no bytes (task_codec) and no keys but the public ones a task names; never decides for a device's owner (policy).
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.responses import MangatVector
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.layout import check_text
from fleetcount_protocol.limits import (
    MAX_AGGREGATORS,
    MAX_ENDPOINT_BYTES,
    MAX_EPSILON,
    MAX_HPKE_KEYS,
    MAX_REPORTS_PER_TASK,
    MAX_TASK_LIFETIME_S,
    MAX_TERM,
    MAX_TEXT_BYTES,
    MAX_UNIX_TIME,
    MAX_WINDOW_S,
    MIN_AGGREGATORS,
    MIN_BATCH_SIZE,
    MIN_OPERATORS,
)
from fleetcount_protocol.task.domain import MAX_VALUES, Bins, Categories, SquareGrid
from fleetcount_protocol.task.public_keys import check_hpke_public_key, check_signing_public_key
from fleetcount_protocol.task.task import (
    Aggregator,
    Mode,
    Release,
    ReleaseKind,
    Response,
    Task,
    UploadStyle,
)

if TYPE_CHECKING:  # The statement and the circuits are loaded only by who asks for them: a device starts without.
    from fleetcount_mechanisms.losses import AdversaryView

    from fleetcount_protocol.vdaf.prio3 import Prio3

__all__ = [
    "CONTEXT_LABEL",
    "check_task",
    "context_of",
    "opened_outputs",
    "operator_key",
    "output_length",
    "prio3_for",
    "task_epsilon",
    "task_exposure",
    "task_views",
]

CONTEXT_LABEL: Final = b"FCT1"
"""Keeps the VDAF context at 36 bytes, so that the words of a joint-randomness hash stay 8-byte aligned."""

_SMALLEST_EPSILON: Final = Fraction(1, 10**6)
_SMALLEST_WEIGHT: Final = Fraction(1, 10**6)
"""Estimates are divided by the weight of the truth in an answer: below this the noise alone leaves every range, and no
aggregator could compute the record."""
_LARGEST_THRESHOLD: Final = 2**32 - 1
_LARGEST_PRECISION_S: Final = 86_400
_DEPLOYMENT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_HOST_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


def check_task(task: Task) -> None:
    """Refuse a task that no honest party may ask or answer (docs/wire.md, "Rules of a task").

    Raises:
        TaskError: the field, its value and the allowed range.
    """
    _check_names(task)
    _check_domain(task)
    _check_mechanism(task)
    _check_times(task)
    _check_release(task)
    _check_aggregators(task.aggregators)


def operator_key(operator: str) -> str:
    """Return the form in which two operators' names are compared: compatibility form, case and spacing folded."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", operator).casefold())
    return " ".join(folded.split())


def context_of(task: Task) -> bytes:
    """Return the VDAF context of the task's reports: "FCT1" and the task id, 36 bytes."""
    return CONTEXT_LABEL + task.task_id


def output_length(task: Task) -> int:
    """Return how many numbers the aggregators add, noise and open: V + 1 in response mode, otherwise V.

    Sampling: the differences of cells 1..V. Response: outputs 0..V of the randomized answers, or for vector Mangat the
    participation bit, which every device sets to 1, and then the V cells. Direct: cells 1..V.
    """
    return task.values + 1 if task.mode is Mode.RESPONSE else task.values


def opened_outputs(task: Task) -> slice:
    """Return which part of a verified output share is added, noised and opened; the rest is forgotten.

    All of it, but in direct mode not output 0: opened beside the cells it would double the loss of a yes/no question,
    and in a one-sided release its count moves against the side that noise protects.
    """
    return slice(1, None) if task.mode is Mode.DIRECT else slice(None)


def prio3_for(task: Task) -> "Prio3":
    """Return the Prio3 instance of the task's reports: its circuit, one share an aggregator."""
    from fleetcount_protocol.vdaf.prio3 import prio3_bits, prio3_one_hot, prio3_two_round

    make = prio3_bits if isinstance(task.mechanism, MangatVector) else prio3_one_hot
    if task.mode is Mode.SAMPLING:
        make = prio3_two_round
    return make(task.values + 1, len(task.aggregators))


def task_views(task: Task) -> "tuple[AdversaryView, ...]":
    """Return the privacy statement: what each adversary could learn, one view an adversary (docs/privacy.md)."""
    from fleetcount_mechanisms import losses

    aggregators, noise = len(task.aggregators), task.release.noise_epsilon
    if isinstance(task.mechanism, SamplingDie):
        if noise is None:
            return losses.exact_sampling_views(task.mechanism, aggregators)
        return losses.sampling_views(task.mechanism, noise, aggregators, task.values)
    if task.mechanism is not None:
        return losses.response_views(task.mechanism, noise, aggregators)
    if noise is None:
        raise TaskError("a direct task without noise has no statement")
    if task.release.kind is ReleaseKind.ONE_SIDED:
        return _one_sided_views(noise, aggregators)
    return losses.direct_views(noise, task.values, aggregators)


def _one_sided_views(noise: Fraction, aggregators: int) -> "tuple[AdversaryView, ...]":
    """Return the statement of counts with noise >= 0 (AGeo; Takagi et al., Asymmetric Differential Privacy).

    Neighbours are one-sided: a device with a value against the same device with none. That a device has no value, or
    which of two values it has, is not protected, hence delta is 0 for that relation alone.
    """
    from fleetcount_mechanisms.losses import AdversaryView

    epsilon = Decimal(-(-noise.numerator * 10**5 // noise.denominator)).scaleb(-5)
    rest = f"any {aggregators - 1} of the {aggregators} aggregators, together with any number of devices"
    audiences = (
        ("public_and_broker", "everyone who reads the release, and the broker", "Released counts"),
        ("one_aggregator", "one aggregator", "Shares and released counts"),
        ("all_but_one_aggregators", rest, "Their shares and released counts"),
    )
    protected = tuple(
        AdversaryView(
            adversary=adversary,
            audience=audience,
            epsilon=epsilon,
            delta=Decimal(0),
            neighbours="one-sided",
            sentence=f"{what}, if one aggregator adds its noise: that a device had a value can always be explained by "
            f'"none of them", with epsilon {epsilon}; that it had none is not protected.',
        )
        for adversary, audience, what in audiences
    )
    exposed = AdversaryView(
        adversary="all_aggregators",
        audience=f"all {aggregators} aggregators together",
        epsilon=None,
        delta=Decimal(1),
        neighbours="one-sided",
        sentence="The answer of every device, put together: no finite epsilon; every truth is seen for certain.",
    )
    return (*protected, exposed)


def task_epsilon(task: Task) -> Decimal | None:
    """Return the loss of the published result, which every ledger charges; None when it has no finite one."""
    from fleetcount_mechanisms.losses import release_epsilon

    return release_epsilon(task_views(task))


def task_exposure(task: Task) -> Fraction:
    """Return the chance that what all aggregators together see of a device is its truth; 1 in direct mode.

    Sampling: p. A response is a mixture of the truth, with this weight, and of a draw that ignores the truth, so the
    weight is P[v | v] - P[v | another truth]: q of two coins, 2 keep - 1 of Warner, 1 - flip of Mangat (of one place of
    a vector), P - Q of the k-ary response.
    """
    mechanism = task.mechanism
    if mechanism is None:
        return Fraction(1)
    if isinstance(mechanism, SamplingDie):
        return mechanism.sampling_rate
    law = mechanism.bit_probability if isinstance(mechanism, MangatVector) else mechanism.probability
    return law(1, 1) - law(1, 0)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise TaskError(message)


def _check_range(what: str, value: object, smallest: int, largest: int) -> int:
    if type(value) is not int or not smallest <= value <= largest:
        raise TaskError(f"{what} is {str(value)[:40]}, allowed: a whole number from {smallest} to {largest}")
    return value


def _check_named(what: str, text: str, smallest: int = 1, largest: int = MAX_TEXT_BYTES) -> None:
    try:
        check_text(text, smallest, largest)
    except ValueError as error:
        raise TaskError(f"{what}: {error}") from None


def _check_fraction(what: str, value: object) -> Fraction:
    # A float or an int that merely equals the fraction would give other parties other bytes or none.
    if not isinstance(value, Fraction):
        raise TaskError(f"{what} is {str(value)[:40]}, allowed: an exact Fraction")
    if abs(value.numerator) > MAX_TERM or value.denominator > MAX_TERM:
        raise TaskError(f"{what} has a term beyond 2**63 - 1")
    return value


def _check_names(task: Task) -> None:
    _check_named("name", task.name)
    _check_named("signal", task.signal)
    if not _DEPLOYMENT.fullmatch(task.deployment):
        raise TaskError(f"deployment is {task.deployment[:40]!a}, allowed: 1 to 32 of a-z, 0-9, '-'")
    _require(len(task.verify_key_digest) == 32, "verify_key_digest must have 32 bytes")


def _check_domain(task: Task) -> None:
    domain = task.domain
    _check_range("number of values", domain.values, 1, MAX_VALUES)
    if isinstance(domain, Bins):
        _check_named("unit", domain.unit, smallest=0)
        for edge in domain.edges:
            _check_fraction("bin edge", edge)
    elif isinstance(domain, Categories):
        for name in domain.names:
            _check_named("category", name)
    elif isinstance(domain, SquareGrid):
        for what in ("x0", "y0", "size"):
            _check_fraction(f"grid {what}", getattr(domain, what))


_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "TwoCoin": ("truth_probability", "yes_probability"),
    "Warner": ("keep",),
    "Mangat": ("flip",),
    "MangatVector": ("flip",),
    "KaryResponse": ("keep",),
}


def _check_mechanism(task: Task) -> None:
    mechanism, mode = task.mechanism, task.mode
    if mode is Mode.DIRECT:
        _require(mechanism is None, f"a direct task has no mechanism, not {type(mechanism).__name__}")
        return
    wanted = SamplingDie if mode is Mode.SAMPLING else Response
    if mechanism is None or not isinstance(mechanism, wanted):
        raise TaskError(f"{mode.name.lower()} mode does not take the mechanism {type(mechanism).__name__}")
    if mechanism.values != task.values:
        raise TaskError(f"mechanism answers {mechanism.values} values, the domain has {task.values}")
    if isinstance(mechanism, SamplingDie):
        rate = _check_fraction("sampling rate", mechanism.sampling_rate)
        fits = _SMALLEST_WEIGHT <= rate < Fraction(1, 2)
        _require(fits, f"sampling rate is {rate}, allowed: from {_SMALLEST_WEIGHT} to below 1/2")
        for face in mechanism.face_probabilities or ():
            _check_fraction("face probability", face)
        return
    for parameter in _PARAMETERS[type(mechanism).__name__]:
        _check_fraction(parameter, getattr(mechanism, parameter))
    weight = task_exposure(task)
    _require(weight >= _SMALLEST_WEIGHT, f"an answer is the truth with weight {weight}, allowed: at least 1/1000000")


def _check_times(task: Task) -> None:
    step = _check_range("time_precision_s", task.time_precision_s, 1, _LARGEST_PRECISION_S)
    names = ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")
    times = [_check_range(name, getattr(task, name), 0, MAX_UNIX_TIME) for name in names]
    for name, time in zip(names, times, strict=True):
        _require(time % step == 0, f"{name} is {time}, not a multiple of time_precision_s = {step}")
    opens, one_closes, two_closes, expiry = times
    _require(opens < one_closes, f"round_one_closes is {one_closes}, allowed: after round_one_opens = {opens}")
    _require(two_closes < expiry, f"expiry is {expiry}, allowed: after round_two_closes = {two_closes}")
    _check_last_close(task)
    _require(
        two_closes - opens <= MAX_WINDOW_S, f"the rounds take {two_closes - opens} s, allowed: at most {MAX_WINDOW_S}"
    )
    _require(
        expiry - opens <= MAX_TASK_LIFETIME_S,
        f"expiry is {expiry - opens} s after the opening, allowed: at most {MAX_TASK_LIFETIME_S}",
    )


def _check_last_close(task: Task) -> None:
    one_closes, two_closes = task.round_one_closes, task.round_two_closes
    envelope = task.upload_style is UploadStyle.ONE_ENVELOPE
    if task.mode is not Mode.SAMPLING:
        _require(not envelope, "one_envelope is an upload style of sampling mode only")
        _require(two_closes == one_closes, f"round_two_closes is {two_closes}, one round closes at {one_closes}")
    elif envelope:
        _require(two_closes >= one_closes, f"round_two_closes is {two_closes}, allowed: from {one_closes} on")
    else:
        _require(two_closes > one_closes, f"round_two_closes is {two_closes}, allowed: after {one_closes}")


def _check_release(task: Task) -> None:
    _check_range("min_batch_size", task.min_batch_size, MIN_BATCH_SIZE, MAX_REPORTS_PER_TASK)
    release = task.release
    level = _check_fraction("level", release.level)
    _require(0 < level < 1, f"level is {level}, allowed: above 0 and below 1")
    # Exact sums over the outputs 0..V would tell the exact number of participants; only differences hide it.
    allowed = {
        ReleaseKind.GEOMETRIC: set(Mode),
        ReleaseKind.EXACT: {Mode.SAMPLING},
        ReleaseKind.ONE_SIDED: {Mode.DIRECT},
    }[release.kind]
    _require(task.mode in allowed, f"release {release.kind.name.lower()} is not for {task.mode.name.lower()} mode")
    if release.kind is ReleaseKind.EXACT:
        _require(release.noise_epsilon is None, "an exact release has no noise_epsilon")
    else:
        epsilon = _check_fraction("noise_epsilon", release.noise_epsilon)
        fits = _SMALLEST_EPSILON <= epsilon <= MAX_EPSILON
        _require(fits, f"noise_epsilon is {epsilon}, allowed: {_SMALLEST_EPSILON} to {MAX_EPSILON}")
    _check_thresholds(release, task.values)


def _check_thresholds(release: Release, values: int) -> None:
    count = values if release.kind is ReleaseKind.ONE_SIDED else 0
    if len(release.thresholds) != count:
        raise TaskError(f"release has {len(release.thresholds)} thresholds, not {count}")
    for threshold in release.thresholds:
        _check_range("threshold", threshold, 0, _LARGEST_THRESHOLD)


def _check_aggregators(aggregators: tuple[Aggregator, ...]) -> None:
    _check_range("number of aggregators", len(aggregators), MIN_AGGREGATORS, MAX_AGGREGATORS)
    for aggregator in aggregators:
        _check_aggregator(aggregator)
    _check_distinct("aggregator id", (str(one.aggregator_id) for one in aggregators))
    _check_distinct("signing key", (one.signing_public_key.hex() for one in aggregators))
    _check_distinct("sealing key", (key.public_key.hex() for one in aggregators for key in one.hpke_keys))
    # One broker may serve all; one device endpoint cannot be two operators.
    _check_distinct("gRPC endpoint", (one.grpc_endpoint.lower() for one in aggregators if one.grpc_endpoint))
    operators = {operator_key(one.operator) for one in aggregators}
    if len(operators) < MIN_OPERATORS:
        raise TaskError(f"the aggregators have {len(operators)} operator, allowed: at least {MIN_OPERATORS} distinct")


def _check_distinct(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        _require(value not in seen, f"{what} {value[:40]} is given twice; every aggregator needs its own")
        seen.add(value)


def _check_aggregator(aggregator: Aggregator) -> None:
    name = aggregator.aggregator_id
    _check_named(f"operator of {name}", aggregator.operator)
    endpoints = [endpoint for endpoint in (aggregator.grpc_endpoint, aggregator.mqtt_broker) if endpoint]
    _require(bool(endpoints), f"aggregator {name} has neither a gRPC endpoint nor an MQTT broker")
    for endpoint in endpoints:
        _check_endpoint(name, endpoint)
    _check_range(f"number of sealing keys of {name}", len(aggregator.hpke_keys), 1, MAX_HPKE_KEYS)
    ids = [_check_range(f"key id of {name}", key.key_id, 0, 255) for key in aggregator.hpke_keys]
    _require(len(set(ids)) == len(ids), f"aggregator {name} gives a key id twice: {ids}")
    for key in aggregator.hpke_keys:
        _check_key(name, check_hpke_public_key, key.public_key)
    _check_key(name, check_signing_public_key, aggregator.signing_public_key)


def _check_key(name: str, check: Callable[[bytes], None], key: bytes) -> None:
    try:
        check(key)
    except ValueError as error:
        raise TaskError(f"aggregator {name}: {error}") from None


def _check_endpoint(name: str, endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    good_port = _PORT.fullmatch(port) is not None and int(port) <= 65_535
    if len(endpoint.encode()) > MAX_ENDPOINT_BYTES or not good_port or not _is_host(host):
        raise TaskError(f"endpoint of {name} is {endpoint[:60]!a}, allowed: host:port with a port from 1 to 65535")


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        return _is_address(host[1:-1], ipaddress.IPv6Address)
    labels = host.split(".")
    if all(label.isdigit() for label in labels):
        return _is_address(host, ipaddress.IPv4Address)
    return len(host) <= 253 and all(_HOST_LABEL.fullmatch(label) for label in labels)


def _is_address(text: str, kind: Callable[[str], object]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
