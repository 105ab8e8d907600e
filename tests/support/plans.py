"""Plans as most counts have them, in a line."""

from fractions import Fraction

from fleetcount_mechanisms.planning import Plan, default_sampling_rate, plan_question
from fleetcount_mechanisms.sampling import SamplingDie


def plan_sampling(
    devices: int,
    values: int,
    epsilon: Fraction,
    aggregators: int = 2,
    sampling_rate: Fraction | None = None,
    *,
    level: Fraction = Fraction(95, 100),
    allow_large_rate: bool = False,
) -> Plan:
    """Return the plan of a count by Sampling Privacy with the uniform die, of the default rate if none is given."""
    rate = default_sampling_rate(values) if sampling_rate is None else sampling_rate
    die = SamplingDie.uniform(rate, values, allow_large_rate=allow_large_rate)
    return plan_question(devices, die, epsilon, aggregators, level=level)
