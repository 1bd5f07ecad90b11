"""Which task is replaced when some tasks cannot reach each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.coordinator.membership import Members
from optimus_workers.coordinator.partition import MAX_FAILURES, Partition

MEMBERS = Members(("w0", "w1", "w2"), ("s0", "s1"))


def repeated(*pairs: tuple[str, str]) -> Partition:
    partition = Partition()
    for worker, server in pairs * MAX_FAILURES:
        partition.add(worker, server)
    return partition


def test_one_broken_connection_is_no_reason_to_let_anybody_go() -> None:
    partition = Partition()
    partition.add("w1", "s0")
    assert partition.cut_off(MEMBERS) is None


def test_of_a_pair_it_is_the_worker() -> None:
    assert repeated(("w1", "s0")).cut_off(MEMBERS) == "w1"


def test_whom_several_complain_about_goes() -> None:
    assert repeated(("w1", "s0"), ("w2", "s0")).cut_off(MEMBERS) == "s0"


def test_the_only_one_of_its_kind_stays() -> None:
    assert repeated(("w1", "s0"), ("w2", "s0")).cut_off(Members(("w1", "w2"), ("s0",))) in ("w1", "w2")
    assert repeated(("w0", "s0")).cut_off(Members(("w0",), ("s0",))) is None


def test_a_completed_step_clears_everybody() -> None:
    partition = repeated(("w1", "s0"))
    partition.clear()
    assert partition.cut_off(MEMBERS) is None


@given(st.lists(st.tuples(st.sampled_from(MEMBERS.workers), st.sampled_from(MEMBERS.servers)), max_size=12))
def test_whoever_goes_was_complained_about_and_leaves_a_membership_that_can_train(pairs: list[tuple[str, str]]) -> None:
    partition = Partition()
    for worker, server in pairs:
        partition.add(worker, server)
    gone = partition.cut_off(MEMBERS)
    if gone is None:
        assert all(pairs.count(pair) < MAX_FAILURES for pair in pairs)
    else:
        assert any(gone in pair and pairs.count(pair) >= MAX_FAILURES for pair in pairs)
