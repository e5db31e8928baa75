import pytest

from disagmoe.schedule.accounting import BUSY, EXPOSED, Kind, Shares, add_up

SECONDS = {
    "compute": 3.0,
    "optimizer": 1.0,
    "data": 1.0,
    "send": 1.0,
    "recv_wait": 2.0,
    "idle": 1.0,
    "checkpoint": 1.0,
}


def test_shares_are_of_all_time():
    shares = Shares.of(SECONDS)
    assert shares.utilisation == pytest.approx(0.5)
    assert shares.exposed_communication == pytest.approx(0.3)
    assert shares.bubble == pytest.approx(0.2)
    assert Shares.of({}) == Shares(utilisation=0.0, exposed_communication=0.0, bubble=0.0)


def test_every_kind_of_time_has_one_share():
    for kind in Kind:
        shares = Shares.of({kind: 2.0})
        assert shares == Shares(
            utilisation=float(kind in BUSY),
            exposed_communication=float(kind in EXPOSED),
            bubble=float(kind not in BUSY | EXPOSED),
        )
    assert SECONDS.keys() == set(Kind)


def test_times_of_several_workers_add_up_by_kind():
    assert add_up([{"idle": 1.0, "data": 2.0}, {"idle": 3.0}, {}]) == {"idle": 4.0, "data": 2.0}
    assert add_up([]) == {}
