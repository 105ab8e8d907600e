"""A device answers series of its deployment alone, and only under the signatures that it has checked."""

from dataclasses import replace

import pytest
from fleetcount_protocol.errors import SignatureError, TaskError

from tests.client.deployment import Deployment

WORLD = Deployment()


def test_a_series_of_another_deployment_is_refused_though_all_have_signed_it() -> None:
    with pytest.raises(TaskError, match="deployment of the series is 'elsewhere'; allowed is 'test'"):
        WORLD.trust().check_series(WORLD.offer(WORLD.series(deployment="elsewhere")).signed)


def test_the_same_series_under_other_signatures_is_checked_anew() -> None:
    trust, signed = WORLD.trust(), WORLD.offer(WORLD.series()).signed
    trust.check_series(signed)

    with pytest.raises(SignatureError, match="does not verify"):
        trust.check_series(replace(signed, signatures=(signed.signatures[0], bytes(64))))
