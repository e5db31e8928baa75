import torch

from disagmoe.config.shares import bounds
from disagmoe.runtime.recording import Recording
from disagmoe.schedule.layout import Worker
from tests.unit.runtime.tiny import batch_of, reference, threads, tiny


def test_gradients_are_summed_over_replicas_and_not_clipped() -> None:
    config = tiny(parallel__attention_workers=2, train__optimizer__clip_norm=1e-3)
    batch = batch_of(config)
    with threads(config, [batch]) as run:
        recordings = run.each(lambda runtime: runtime.record())
        run.each(lambda runtime: runtime.run_step(0))
    expected = reference(config, batch).grads
    for recording in recordings.values():
        for name, grad in recording.grads.items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-14)
    names = [set(recording.grads) for recording in recordings.values()]
    assert set.union(*names) == set(expected)


def test_choices_are_those_of_the_worker_s_own_tokens() -> None:
    config = tiny(parallel__groups=2, parallel__attention_workers=2, parallel__micro_batch_size=3)
    batch = batch_of(config)
    with threads(config, [batch]) as run:
        recordings = run.each(lambda runtime: runtime.record())
        run.each(lambda runtime: runtime.run_step(0))
    routing = reference(config, batch).routing
    for group in range(2):
        for rank in range(2):
            recording = recordings[Worker.parse(f"A{group}.{rank}")]
            assert set(recording.choices) == {(group, 0), (group, 1)}
            for mb, sequences in enumerate((3, 1)):
                start, stop = bounds(sequences, [1.0, 1.0], rank)
                whole_TK = routing[mb][group].expert_TK
                assert torch.equal(recording.choices[group, mb], whole_TK[5 * start : 5 * stop])
    assert recordings[Worker.parse("F0.0")].choices == {}


def test_a_recording_holds_what_came_after_it_was_asked_for() -> None:
    config = tiny()
    with threads(config, [batch_of(config, seed) for seed in range(2)]) as run:
        run.each(lambda runtime: runtime.run_step(0))
        first = run.each(lambda runtime: runtime.record())
        assert all(recording == Recording() for recording in first.values())
        run.each(lambda runtime: runtime.run_step(1))
        second = run.each(lambda runtime: runtime.record())
    assert all(recording.grads for recording in first.values())
    assert all(recording == Recording() for recording in second.values())
