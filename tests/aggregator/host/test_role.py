"""Roles are named by a closed list of words."""

import pytest
from fleetcount_aggregator.host.role import ALL_ROLES, Role, read_roles
from fleetcount_protocol.errors import UsageError


def test_roles_are_read_from_a_list_with_commas() -> None:
    assert read_roles("intake") == {Role.INTAKE}
    assert read_roles("worker, coordinator") == {Role.WORKER, Role.COORDINATOR}
    assert read_roles("intake,worker,coordinator") == ALL_ROLES


@pytest.mark.parametrize(("text", "wrong"), [("intake,leader", "'leader'"), ("", "''"), ("intake,,worker", "''")])
def test_a_word_that_is_no_role_is_named_with_what_is_allowed(text: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=f"names {wrong}; allowed are some of intake, worker, coordinator"):
        read_roles(text)
