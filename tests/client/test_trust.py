"""A device answers tasks of its deployment alone, and only under the signatures that it has checked."""

from dataclasses import replace

import pytest
from fleetcount_protocol.errors import SignatureError, TaskError

from tests.client.deployment import Deployment

WORLD = Deployment()


def test_a_task_of_another_deployment_is_refused_though_all_have_signed_it() -> None:
    with pytest.raises(TaskError, match="deployment of the task is 'elsewhere'; allowed is 'test'"):
        WORLD.trust().check(WORLD.sign(WORLD.task(deployment="elsewhere")))


def test_the_same_task_under_other_signatures_is_checked_anew() -> None:
    trust, signed = WORLD.trust(), WORLD.sign(WORLD.task())
    trust.check(signed)

    with pytest.raises(SignatureError, match="does not verify"):
        trust.check(replace(signed, signatures=(signed.signatures[0], bytes(64))))
