"""A device answers question of its deployment alone, and only under the signatures that it has checked."""

from dataclasses import replace

import pytest
from fleetcount_protocol.errors import QuestionError, SignatureError

from tests.client.deployment import Deployment

WORLD = Deployment()


def test_a_question_of_another_deployment_is_refused_though_all_have_signed_it() -> None:
    with pytest.raises(QuestionError, match="deployment of the question is 'elsewhere'; allowed is 'test'"):
        WORLD.trust().check_question(WORLD.offer(WORLD.question(deployment="elsewhere")).signed)


def test_the_same_question_under_other_signatures_is_checked_anew() -> None:
    trust, signed = WORLD.trust(), WORLD.offer(WORLD.question()).signed
    trust.check_question(signed)

    with pytest.raises(SignatureError, match="does not verify"):
        trust.check_question(replace(signed, signatures=(signed.signatures[0], bytes(64))))
