"""Degrees to metres and back around one point: the equirectangular projection, good for a city (within 0.1 % at 50 km).

x = R cos(φ₀) (λ - λ₀), y = R (φ - φ₀), in radians, R the mean radius of the Earth (6,371,008.8 m, IUGG). It knows no
cells. Longitudes are not wrapped at 180 degrees, but by `around`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from fleetcount_simulator.cells.model import Floats

METRES_PER_DEGREE: Final = math.pi * 6_371_008.8 / 180
"""Of latitude."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A local frame in metres whose point (0, 0) is `longitude`, `latitude` (degrees; latitude within 85)."""

    longitude: Fraction
    latitude: Fraction

    @property
    def _metres_per_degree_east(self) -> float:
        return METRES_PER_DEGREE * math.cos(math.radians(float(self.latitude)))

    def around(self, longitude: Floats) -> Floats:
        """Return the same longitudes where they are at most 180 degrees from the point: 180.05 for -179.95."""
        away = longitude - float(self.longitude)
        return np.asarray(longitude - 360.0 * (away > 180) + 360.0 * (away < -180), dtype=np.float64)

    def to_metres(self, longitude: Floats, latitude: Floats) -> tuple[Floats, Floats]:
        """Return x (east) and y (north) in metres."""
        x = (longitude - float(self.longitude)) * self._metres_per_degree_east
        return x, (latitude - float(self.latitude)) * METRES_PER_DEGREE

    def to_degrees(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return longitude and latitude in degrees."""
        return x / self._metres_per_degree_east + float(self.longitude), y / METRES_PER_DEGREE + float(self.latitude)
