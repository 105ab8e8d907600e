"""The errors of this package.

A message names the value and the allowed range, never the data or the record that it came from.

    AnalysisError            the request has no answer
    +-- RangeError           a number lies outside its stated range
    +-- ShapeError           two arguments do not have lengths that fit together
    +-- TooLargeError        the exact computation would not fit into memory; the message names the closed form
    +-- NoOptimumError       the linear-programming solver stopped without an optimum
    +-- ExportError          a table could not be written, or does not continue the existing file
"""


class AnalysisError(ValueError):
    """The base of every error that this package raises on purpose."""


class RangeError(AnalysisError):
    """A number lies outside its range; the message gives the number and the range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} is {value}; allowed is {allowed}")


class ShapeError(AnalysisError):
    """Two arguments do not have lengths that fit together."""


class TooLargeError(AnalysisError):
    """The exact computation would not fit into memory."""


class NoOptimumError(AnalysisError):
    """The linear-programming solver stopped without an optimum."""


class ExportError(AnalysisError):
    """A table could not be written, or does not continue the existing file."""
