"""The signed lists of sealing keys: this aggregator's own, and the newest of each other one.

Windows of a question name no keys: devices take them from these lists. It must not see a private sealing key.
"""

from fleetcount_protocol.errors import FleetcountError, QuestionError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_LISTED_KEYS
from fleetcount_protocol.question.key_list import (
    KeyList,
    ListedKey,
    SignedKeyList,
    check_distinct_keys,
    key_for,
    replaces,
    sign_key_list,
    verify_key_list,
)
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.fields import HpkeKey
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.host import Host


class KeyLists:
    """The newest list of sealing keys of each aggregator, this one's too."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._newest: dict[AggregatorId, SignedKeyList] = {}

    def get(self, aggregator_id: AggregatorId) -> SignedKeyList | None:
        """Return the newest list of an aggregator that is known here."""
        return self._newest.get(aggregator_id)

    def own(self) -> SignedKeyList:
        """Return this aggregator's list, signed anew when its keys or their validity have changed.

        It bears the latest time that has certainly come: others would take no list from the future.

        Raises:
            QuestionError: it has no key that is still valid.
        """
        host, now = self._host, int(self._host.moment().sure)
        keys = tuple(
            ListedKey(key=HpkeKey(key_id=key_id, public_key=public_key), not_before=before, not_after=after)
            for key_id, public_key, (before, after) in host.keys.listed()
            if now < after
        )
        if not keys:
            raise QuestionError(f"no sealing key in [keys] hpke_key_directory is valid after {now}")
        known = self._newest.get(host.aggregator_id)
        if known is None or known.key_list.keys != keys[:MAX_LISTED_KEYS]:
            key_list = KeyList(aggregator_id=host.aggregator_id, issued_at=now, keys=keys[:MAX_LISTED_KEYS])
            known = sign_key_list(key_list, host.identity.signing_key)
            self._newest[host.aggregator_id] = known
        return known

    def seals_window(self, opens: int, closes: int) -> bool:
        """Return whether devices could seal to this aggregator for a window, given in Unix seconds."""
        try:
            key_for(self.own().key_list, opens, closes)
        except QuestionError:
            return False
        return True

    def keep(self, question: Question, signed: SignedKeyList) -> bool:
        """Keep another aggregator's list if it replaces the one known (`replaces`); return whether it is kept."""
        known = self._newest.get(signed.key_list.aggregator_id)
        if not replaces(signed.key_list, None if known is None else known.key_list, self._host.moment().now):
            return False
        described = {one.aggregator_id: one for one in question.aggregators}.get(signed.key_list.aggregator_id)
        try:
            if described is None:
                raise QuestionError("the question does not list the aggregator")
            verify_key_list(signed, described, self._host.identity.trusted.get(described.aggregator_id))
            others = (one for one in self.of(question) if one.key_list.aggregator_id != described.aggregator_id)
            check_distinct_keys([signed.key_list, *(one.key_list for one in others)])
        except FleetcountError as error:
            log.warning("key_list_refused", aggregator=signed.key_list.aggregator_id, reason=str(error))
            return False
        self._newest[signed.key_list.aggregator_id] = signed
        return True

    def of(self, question: Question) -> tuple[SignedKeyList, ...]:
        """Return the lists of a question's aggregators, in its order, as far as they are known."""
        self.own()
        ids = [one.aggregator_id for one in question.aggregators]
        return tuple(self._newest[name] for name in ids if name in self._newest)
