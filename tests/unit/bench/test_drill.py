"""Which faults a drill brings."""

from disagmoe.bench.drill import EVERY, drill, steps_of

WORKERS = ("A0.0", "A0.1", "F0.0", "F0.1")
PHASES = ("forward", "backward", "reduction", "optimizer", "saving")


def test_a_whole_drill_kills_and_freezes_each_kind_of_worker_in_each_phase() -> None:
    plan = drill(0, 43, WORKERS)
    cells = {(one.kind, one.phase, one.worker[0]) for one in plan}
    for kind in ("kill", "freeze"):
        assert {(kind, phase, side) for phase in PHASES for side in "AF"} <= cells
    assert {"driver", "exception", "nan", "full disk", "memory"} <= {one.kind for one in plan}


def test_faults_come_one_after_the_other_and_a_save_is_where_one_is_meant_to_fail() -> None:
    for seed in range(20):
        plan = drill(seed, 43, WORKERS)
        steps = [one.step for one in plan]
        assert steps == sorted(set(steps))
        assert [one.number for one in plan] == list(range(43))
        assert all((one.step + 1) % EVERY == 0 for one in plan if one.phase == "saving")
        assert steps_of(plan) > steps[-1] + 1


def test_a_seed_decides_all() -> None:
    assert drill(7, 20, WORKERS) == drill(7, 20, WORKERS)
    assert drill(7, 20, WORKERS) != drill(8, 20, WORKERS)
