"""Tests that take minutes each are a campaign of their own: skipped, and said to be, unless it is asked for."""

import os

import pytest

CAMPAIGN = bool(os.environ.get("FLEETCOUNT_CAMPAIGN"))
campaign = pytest.mark.skipif(not CAMPAIGN, reason="minutes each: FLEETCOUNT_CAMPAIGN=1 runs it")
