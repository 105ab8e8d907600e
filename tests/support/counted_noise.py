"""Noise that a test can count."""

from fleetcount_mechanisms.noise import NoiseLaw


class CountedNoise:
    """No noise, and how often it was drawn."""

    drawn = 0

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        del law
        self.drawn += 1
        return [0] * count
