"""Errors of the simulator, in the protocol's families: the caller's fault, or this machine's."""

from fleetcount_protocol.errors import MachineError, UsageError


class ScenarioError(UsageError):
    """A scenario, trace or truth file that cannot be used; the message names the place, the value and the range."""


class ProcessError(MachineError):
    """A child process did not start, or ended too early."""
