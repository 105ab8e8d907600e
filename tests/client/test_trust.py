"""A device answers question of its deployment alone, and only under the signatures that it has checked."""

from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.errors import QuestionError, SignatureError
from fleetcount_protocol.question import key_list

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


def test_a_key_list_is_verified_once_and_under_another_signature_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    trust, offer = WORLD.trust(), WORLD.offer(WORLD.question())
    question, listed = offer.signed.question, offer.key_lists[0]
    verified: list[object] = []
    verify = key_list.verify_key_list

    def counted(*arguments: Any) -> None:
        verified.append(arguments[0])
        verify(*arguments)

    monkeypatch.setattr(key_list, "verify_key_list", counted)
    for _ in range(3):
        trust.check_key_list(listed, question)

    assert verified == [listed]
    with pytest.raises(SignatureError, match="does not verify"):
        trust.check_key_list(replace(listed, signature=bytes(64)), question)
