"""The rows of answers.json, computed apart from the product: `python tests/golden/answers.py` writes the file anew.

Nothing of fleetcount is imported: formulas are fractions, and decimals of 40 digits where there is a power of e. Where
each stands: [SP], [ADP] are the papers of docs/papers.md, and the rest is docs/spec.md and what is named at the row.
"""

import json
import sys
from collections.abc import Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

Row = dict[str, Any]
getcontext().prec = 40
FILE = Path(__file__).with_suffix(".json")
CLOSE = "relative 1e-10"
Z = Fraction(1959963984540054, 10**15)
"""The half width of a normal at 95 %, in standard deviations."""


def decimal_of(number: Fraction | Decimal) -> Decimal:
    """Return 40 digits."""
    return number if isinstance(number, Decimal) else Decimal(number.numerator) / Decimal(number.denominator)


def root(number: Fraction | Decimal) -> Decimal:
    """Return the square root."""
    return decimal_of(number).sqrt()


def power(exponent: Fraction) -> Decimal:
    """Return e to a power."""
    return decimal_of(exponent).exp()


def row(inputs: Row, expected: object, how: str, tolerance: str = CLOSE) -> Row:
    """Return a row of the file; decimals have 15 digits."""
    told = f"{expected:.15g}" if isinstance(expected, Decimal) else expected
    if isinstance(expected, Fraction):
        told = str(expected)
    texts = {name: str(one) if isinstance(one, Fraction) else one for name, one in inputs.items()}
    return {"inputs": texts, "expected": told, "tolerance": tolerance, "how": how}


# Means: T(mu) = sum of (g_v - mu) Y_v over V points g_v from 0 to 1; every Y_v has noise of variance S.


def points(values: int) -> list[Fraction]:
    """Return V equal points from 0 to 1."""
    return [Fraction(value, values - 1) for value in range(values)]


def noise_of_mean(values: int, mean: Fraction, total: str) -> Row:
    """c(mu): a free total has the noise of a cell, and least squares takes from each cell a (V+1)-th of the residue."""
    away = [one - mean for one in points(values)]
    c = sum((one**2 for one in away), Fraction(0))
    c -= sum(away, Fraction(0)) ** 2 / (values + 1) if total == "free" else 0
    how = "sum (g-mu)^2, with a free total less (sum (g-mu))^2/(V+1): covariance I - 11'/(V+1) of least squares"
    return row({"V": values, "mu": mean, "total": total}, c, how)


def variance_of_mean(values: int, devices: int, variance: Fraction, weighted: str) -> Fraction:
    """Return the variance of the mean at 1/2; positions uniform between points, so n/(6(V-1)^2) of rounding."""
    steps = values - 1
    if weighted == "no":
        known = 12 * steps / (variance * values * (values + 1))
    else:
        # Shares 1/32 of the cells and 31/32 of sum of (2v-V-1) Y_v, which moves by 2(V-1): its price is (2(V-1))^2/2.
        cells, whole = 32 * variance, variance * 2 * steps**2 * Fraction(32, 31)
        known = 12 * steps / (cells * values * (values + 1)) + 4 * steps**2 / whole
    return (1 / known + Fraction(devices, 6 * steps**2)) / devices**2


def error_of_mean(values: int, devices: int, weighted: str) -> Row:
    """The sd of the mean with cell sd 36."""
    how = "sqrt(1/(12(V-1)/(S_c V(V+1)) + 4(V-1)^2/S_w) + n/(6(V-1)^2))/n; S_c = 32 S, S_w = 2(V-1)^2 (32/31) S"
    if weighted == "no":
        how = "sqrt(S V(V+1)/(12(V-1)) + n/(6(V-1)^2))/n"
    inputs = {"V": values, "n": devices, "S": 1296, "weighted": weighted}
    return row(inputs, root(variance_of_mean(values, devices, Fraction(1296), weighted)), how)


def points_for(devices: int) -> Row:
    """The number of points from 2 to 64 with the least variance; near 1 + (4n/S)^(1/3), at least 3."""
    best = min(range(2, 65), key=lambda values: variance_of_mean(values, devices, Fraction(1296), "no"))
    return row({"n": devices, "S": 1296}, best, "argmin of S V(V+1)/(12(V-1)) + n/(6(V-1)^2)", "exact")


def width_of_mean(values: int, devices: int) -> Row:
    """The guaranteed half width: at least that of a normal of the largest variance, and within 3 % of it."""
    steps = values - 1
    variance = 1296 * Fraction(values * (values + 1), 12 * steps) + Fraction(devices, 4 * steps**2)
    normal = root(variance * Z**2)
    inputs: Row = {"V": values, "n": devices, "S": 1296}
    inputs |= {"least": f"{normal:.15g}", "most": f"{normal * Decimal('1.03'):.15g}"}
    return row(inputs, 1, "1 if 1.96 sqrt(S c + n D^2/4) <= h <= 1.03 times that, D = 1/(V-1)", "exact")


# Quantiles: D_v = F(v) - q N, with a free total.


def spread_of_quantile(values: int, value: int, q: Fraction, total: str) -> Fraction:
    """Return the variance of D_v in that of a cell: weights 1-q and -q, and the residue's part with a free total."""
    plain = value * (1 - q) ** 2 + (values - value) * q**2
    return plain - (value * (1 - q) - (values - value) * q) ** 2 / (values + 1) if total == "free" else plain


def variance_of_quantile(values: int, value: int, q: Fraction, total: str) -> Row:
    """The variance of D_v; V/4 at the middle for the median, so that its sd is sqrt(V)/2 cells."""
    how = "v(1-q)^2 + (V-v)q^2, with a free total less (v(1-q) - (V-v)q)^2/(V+1)"
    inputs: Row = {"V": values, "v": value, "q": q, "total": total}
    return row(inputs, spread_of_quantile(values, value, q, total), how)


def ends_of_quantile(opened: Sequence[int], variance: int, q: Fraction) -> list[Row]:
    """Sign changes of D: v is kept unless D_v < 0 is sure, or D_(v-1) >= 0 is; the half width is a normal's."""
    *counts, total = opened
    values = len(counts)
    cells = [one + Fraction(total - sum(counts), values + 1) for one in counts]
    above = [sum(cells[:value], Fraction(0)) - q * sum(cells) for value in range(1, values + 1)]
    reach = [root(variance * spread_of_quantile(values, value, q, "free") * Z**2) for value in range(1, values)]
    surely_below = [decimal_of(-one) > far for one, far in zip(above, reach, strict=False)]
    surely_above = [decimal_of(one) > far for one, far in zip(above, reach, strict=False)]
    ends = {
        "first": 1 + sum(surely_below),
        "last": values - sum(surely_above),
        "value": 1 + sum(one < 0 for one in above),
    }
    how = "first and last v with up(D_v) >= 0 > low(D_(v-1)), D_v = F(v) - qN of least squares with a free total"
    inputs = {"opened": [*opened], "S": variance, "q": str(q)}
    return [row({**inputs, "of": of}, end, how, "exact") for of, end in ends.items()]


# Tables and sets.


def table(rows: int, columns: int) -> list[Row]:
    """A table of A by B with thirds of the budget and a free total: the numbers that a reader adds up."""
    a, b, s, tau = rows, columns, Fraction(3), Fraction(1)
    rest, by_a, by_b = 1 / s, 1 / s + b / s, 1 / s + a / s
    mean = 1 / s + b / s + a / s + a * b / tau
    found = {
        "cell": ((a - 1) * (b - 1) / rest + (a - 1) / by_a + (b - 1) / by_b + 1 / mean) / (a * b),
        "row": b * ((a - 1) / by_a + 1 / mean) / a,
        "column": a * ((b - 1) / by_b + 1 / mean) / b,
        "total": a * b / mean,
    }
    how = "l_rest = 1/s, l_A = l + B/s, l_B = l + A/s, l_mean = l + B/s + A/s + AB/tau; s = 3, tau = 1 (Scheffe, ch. 4)"
    # A reader's weights are floats of 9 decimals.
    return [row({"A": a, "B": b, "of": of}, variance, how, "relative 1e-8") for of, variance in found.items()]


def sets(values: int, most: int) -> list[Row]:
    """A set of m of V values that becomes another moves min(2m, V) cells; one that comes m cells and the holders."""
    moved = min(2 * most, values)
    how = "min(2m, V)/(2s); geometric min(2m, V) e1; holders at s/(min(2m, V) - m) cost nothing"
    inputs: Row = {"V": values, "m": most, "s": "4", "law": "gaussian", "holders": "no"}
    found = [row(inputs, Fraction(moved, 8), how, "exact")]
    found.append(row({**inputs, "s": "1/8", "law": "geometric"}, Fraction(moved, 8), how, "exact"))
    if moved > most:
        found.append(row({**inputs, "holders": "free"}, Fraction(moved, 8), how, "exact"))
    return found


def holders(values: int, most: int) -> Row:
    """The noise of the number of holders, in that of a cell: what comes may cost as much as what changes."""
    ratio = Fraction(1, min(2 * most, values) - most)
    return row({"V": values, "m": most}, ratio, "m/(2s) + 1/(2 tau) = min(2m, V)/(2s)", "exact")


# Codes: the noise of two aggregators is Z = Z_1 + Z_2, P[Z_i = z] = (1-a)/(1+a) a^|z|.


def tail(least: int, epsilon: Fraction) -> Decimal:
    """Return P[Z >= least]: P[Z = z] = ((1-a)/(1+a))^2 a^|z| (|z| + (1+a^2)/(1-a^2))."""
    a = power(-epsilon)
    scale, middle = ((1 - a) / (1 + a)) ** 2, (1 + a * a) / (1 - a * a)

    def beyond(start: int) -> Decimal:
        """Return the sum over z >= start >= 1: the sums of a^z and of z a^z are geometric."""
        return scale * a**start * ((start + middle) / (1 - a) + a / (1 - a) ** 2)

    return beyond(least) if least >= 1 else 1 - beyond(1 - least)


def found_code(vehicles: int, steps: int, threshold: int = 44) -> Row:
    """The chance that all steps reach the threshold; every step has noise of its own."""
    chance = tail(threshold - vehicles, Fraction(1, 4)) ** steps
    inputs = {"e1": "1/4", "threshold": threshold, "steps": steps, "vehicles": vehicles}
    return row(inputs, chance, "P[Z_1 + Z_2 >= threshold - n]^steps, two-sided geometric")


def seen_code(chance: Fraction, steps: int, threshold: int = 44) -> Row:
    """The least code that is found with a chance."""
    vehicles = next(n for n in range(1, 1000) if tail(threshold - n, Fraction(1, 4)) ** steps >= decimal_of(chance))
    inputs = {"e1": "1/4", "threshold": threshold, "steps": steps, "chance": str(chance)}
    return row(inputs, vehicles, "least n with P[Z_1 + Z_2 >= threshold - n]^steps >= chance", "exact")


# One direction.


def ends_one_sided(count: int, epsilon: Fraction, level: Fraction, direction: str) -> list[Row]:
    """Noise of two aggregators is negative binomial: P[Z <= c] = 1 - (c+2) q^(c+1) + (c+1) q^(c+2), q = e^-eps."""
    q = power(-epsilon)
    far = next(c for c in range(10_000) if 1 - (c + 2) * q ** (c + 1) + (c + 1) * q ** (c + 2) >= decimal_of(level))
    ends = {"low": max(0, count - far), "high": count} if direction == "up" else {"low": count, "high": count + far}
    how = "one end is never wrong; the other is the least c away with 1 - (c+2)q^(c+1) + (c+1)q^(c+2) >= level [ADP]"
    inputs = {"y": count, "epsilon": str(epsilon), "k": 2, "level": str(level), "direction": direction}
    return [row({**inputs, "of": of}, end, how, "exact") for of, end in ends.items()]


ORDER: dict[str, list[int]] = {"1": [2, 3], "2": [3]}
"""A policy of three values: 1 is hidden behind 2 and 3, 2 behind 3, and 3 behind none."""


def protected(epsilon: Fraction, protects: dict[str, list[int]], moved: int) -> Row:
    """A wrong bit has chance e^(-eps/k), k being how many bits a hidden change moves [ADP, Definition V.3]."""
    values = max(int(one) for name, others in protects.items() for one in (name, *map(str, others)))
    inputs = {"epsilon": str(epsilon), "V": values, "protects": protects}
    return row(inputs, power(-epsilon / moved), f"e^(-epsilon/{moved})", "relative 1e-9")


def protected_error(value: int, count: int, devices: int, epsilon: Fraction = Fraction(2)) -> Row:
    """The sd of an estimate: value 1 is never told as absent, 3 never as present, and 2 is wrong both ways."""
    f = power(-epsilon / 2)
    variance = {1: (devices - count) * f / (1 - f), 2: devices * f / (1 - f) ** 2, 3: count * f / (1 - f)}[value]
    inputs = {"epsilon": str(epsilon), "V": 3, "protects": ORDER, "value": value, "n": count, "N": devices}
    how = "hidden only: (N-n) f/(1-f); both: N f/(1-f)^2; behind it only: n f/(1-f); f = e^(-epsilon/2)"
    return row(inputs, root(variance), how, "relative 1e-9")


def groups() -> dict[str, list[Row]]:
    """Return all rows by group."""
    half, normal = Fraction(1, 2), [40, 60, 200, 900, 1200, 700, 300, 90]
    return {
        "mean_noise": [
            noise_of_mean(2, half, "free"),
            noise_of_mean(5, Fraction(1, 10), "no"),
            noise_of_mean(5, Fraction(1, 10), "free"),
        ],
        "mean_error": [
            *(error_of_mean(values, n, "no") for values, n in ((2, 200), (3, 200), (3, 1000), (8, 100_000))),
            *(error_of_mean(33, n, "yes") for n in (1000, 100_000)),
        ],
        "mean_points": [points_for(n) for n in (200, 1000, 10_000, 100_000)],
        "mean_width": [width_of_mean(3, 200), width_of_mean(3, 1000)],
        "quantile_variance": [
            *(variance_of_quantile(values, values // 2, half, "free") for values in (16, 64, 256)),
            variance_of_quantile(64, 16, Fraction(9, 10), "free"),
            variance_of_quantile(64, 16, Fraction(9, 10), "no"),
        ],
        "quantile_end": [
            *ends_of_quantile([20, 30, 80, 120, 110, 60, 30, 10, 470], 1296, half),
            *ends_of_quantile([*normal, sum(normal) - 40], 1296, Fraction(9, 10)),
        ],
        "table_variance": [*table(16, 4), *table(3, 5)],
        "set_price": [one for values, most in ((2, 1), (5, 3), (100, 3), (3, 3)) for one in sets(values, most)],
        "set_holders": [holders(*one) for one in ((100, 3), (5, 3), (4, 3))],
        "code_found": [found_code(*one) for one in ((0, 1), (44, 1), (51, 2), (61, 2), (106, 2))],
        "code_seen": [seen_code(Fraction(95, 100), 2), seen_code(Fraction(1, 2), 1)],
        "walk_price": [row({"e1": "1/4", "steps": 2}, 1, "2 cells a step, e1 each, every step", "exact")],
        "one_sided_end": [
            *ends_one_sided(100, Fraction(1, 10), Fraction(95, 100), "up"),
            *ends_one_sided(100, Fraction(1, 10), Fraction(95, 100), "down"),
            *ends_one_sided(3, Fraction(1, 2), Fraction(99, 100), "up"),
        ],
        "protected_flip": [
            protected(Fraction(2), ORDER, 2),
            protected(Fraction(1), {"1": [2]}, 2),
            protected(Fraction(1), {"1": [0]}, 1),
        ],
        "protected_sd": [
            protected_error(1, 1500, 50_000),
            protected_error(2, 9000, 50_000),
            protected_error(3, 37_500, 50_000),
        ],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(groups(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {FILE.name}", file=sys.stderr)
