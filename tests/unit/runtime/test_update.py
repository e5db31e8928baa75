import torch

from disagmoe.runtime.parameters import SegmentKind
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.update import TrainingState
from disagmoe.schedule.layout import Side, Worker
from disagmoe.transport.faults import Delay
from tests.unit.runtime.tiny import batch_of, step, threads, tiny, values_of

LAYOUT = {
    "parallel__attention_workers": 2,
    "parallel__groups": 2,
    "parallel__rings": 2,
    "train__precision": "fp32",
}


def test_optimizer_state_of_every_parameter_is_on_one_worker() -> None:
    """ZeRO stage 1: states of all workers together are as many as those of one process."""
    split, one = tiny(**LAYOUT), tiny()

    def elements(config: object) -> int:
        with threads(config, []) as run:  # type: ignore[arg-type]
            states = [s for r in run.workers.values() for s in r.update.optimizer.states.values()]
        return sum(state.exp_avg.numel() for state in states)

    assert elements(split) == elements(one)


def test_replicas_stay_equal_over_steps() -> None:
    config = tiny(**LAYOUT)
    with threads(config, [batch_of(config, seed) for seed in range(3)]) as run:
        before = values_of(run)
        for number in range(3):
            seen = step(run, number)
    found: dict[str, torch.Tensor] = {}
    for worker, values in seen.values.items():
        for name, value in values.items():
            assert torch.equal(found.setdefault(name, value), value), (worker, name)
            assert not torch.equal(value, before[worker][name])


def test_norms_of_shards_add_up_by_segment() -> None:
    config = tiny(**LAYOUT)
    norms: dict[SegmentKind, float] = dict.fromkeys(SegmentKind, 0.0)
    with threads(config, [batch_of(config)]) as run:
        recorded = run.each(WorkerRuntime.record)

        def shares(runtime: WorkerRuntime) -> dict[SegmentKind, float]:
            kept: dict[SegmentKind, float] = {}
            original = runtime.update.norm_squared

            def norm_squared() -> dict[SegmentKind, float]:
                kept.update(original())
                return kept

            runtime.update.norm_squared = norm_squared  # type: ignore[method-assign]
            runtime.run_step(0)
            return kept

        for kept in run.each(shares).values():
            for kind, norm in kept.items():
                norms[kind] += norm
    grads: dict[str, torch.Tensor] = {}
    for recording in recorded.values():
        grads |= recording.grads
    sizes = dict.fromkeys(map(str, SegmentKind), 0.0)
    for name, grad in grads.items():
        kind = "experts" if ".experts." in name else "shared" if "moe_norm" in name else "attention"
        sizes[kind] += grad.double().square().sum().item()
    for kind, norm in norms.items():
        assert abs(norm - sizes[str(kind)]) <= 1e-12 * sizes[str(kind)]


def test_after_a_step_no_sum_is_kept() -> None:
    config = tiny(**LAYOUT)
    with threads(config, [batch_of(config)]) as run:
        run.each(lambda runtime: runtime.run_step(0))
        for runtime in run.workers.values():
            assert runtime.update._grads == {}
            assert not any(bool(grad.any()) for grad in runtime.parameters.grads.values())


def test_a_loaded_state_continues_as_the_run_it_was_taken_from() -> None:
    """Moments, parameters and the number of steps, from one layout to another."""
    one, split = tiny(), tiny(**LAYOUT | {"train__precision": "fp64"})
    batches = [batch_of(one, seed) for seed in range(3)]
    with threads(one, batches) as run:
        step(run, 0)
        step(run, 1)
        values: dict[str, torch.Tensor] = {}
        moments: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
        for runtime in run.workers.values():
            values |= {n: v.clone() for n, v in runtime.parameters.global_values().items()}
            for held in runtime.update._replicas.values():
                states = runtime.update.optimizer.states
                for part, which in zip(moments, ("exp_avg", "exp_avg_sq"), strict=True):
                    flat = [getattr(states[p.key], which).flatten() for p in held.pieces]
                    whole = torch.cat(flat).clone() if flat else torch.empty(0)
                    by_local = held.segment.views(whole) if held.segment.tensors else {}
                    for local in held.segment.tensors:
                        part |= local.split(by_local[local.name])
        expected = {n: v for vs in step(run, 2).values.values() for n, v in vs.items()}
    state = TrainingState(values, *moments, steps=2)
    with threads(split, batches) as run:
        run.each(lambda runtime: runtime.update.load(state))
        seen = step(run, 2)
    for found in seen.values.values():
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)


def test_bf16_values_are_rounded_from_fp32_masters_on_all_replicas() -> None:
    config = tiny(**LAYOUT | {"train__precision": "bf16"})
    with threads(config, [batch_of(config)] * 2) as run:
        step(run, 0)
        step(run, 1)
        masters: dict[str, torch.Tensor] = {}
        for worker, runtime in run.workers.items():
            if worker.group.side is Side.EXPERT:
                continue
            for held in runtime.update._replicas.values():
                flat = held.segment.flat_value
                for piece in held.pieces:
                    master = runtime.update.optimizer.states[piece.key].master
                    assert master.dtype is torch.float32
                    assert torch.equal(master.bfloat16(), flat[piece.start : piece.stop])
                    masters[f"{worker.group} {piece.key}"] = master
    assert masters


def test_waiting_for_other_shards_is_communication() -> None:
    config = tiny(parallel__attention_workers=2)
    with threads(config, [batch_of(config)]) as run:
        # of the step's two posts among replicas, the second sends the updated values
        run.hub.inject("A0.1", "attention0.replicas", 1, Delay(0.3))
        reports = run.each(lambda runtime: runtime.run_step(0))
    seconds = reports[Worker.parse("A0.0")].seconds
    assert seconds["send"] >= 0.25
    assert seconds["optimizer"] < 0.25
