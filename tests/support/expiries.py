"""When sessions of tests end: on the hour, as every aggregator demands."""

from fleetcount_protocol.limits import SESSION_EXPIRY_STEP_S


def on_the_hour(moment: float, later: int = 0) -> int:
    """Return the first whole hour (Unix seconds) from `moment` on, or `later` hours after it."""
    return (-(-int(moment) // SESSION_EXPIRY_STEP_S) + later) * SESSION_EXPIRY_STEP_S
