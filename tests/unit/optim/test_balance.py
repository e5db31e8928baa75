import torch

from disagmoe.optim.balance import move_balance
from tests.unit.runtime.test_families import FAMILIES
from tests.unit.runtime.tiny import batch_of, threads, tiny


def test_the_bias_moves_towards_the_mean() -> None:
    bias = torch.zeros(4)
    move_balance(bias, [5, 1, 3, 3], 0.25)  # the mean is 3
    assert bias.tolist() == [-0.25, 0.25, 0.0, 0.0]


def test_a_thousand_small_steps_add_up() -> None:
    """Case R3: in bf16 the sum would stick at 0.5."""
    bias = torch.zeros(3)
    for _ in range(1000):
        move_balance(bias, [0, 6, 3], 1e-3)
    torch.testing.assert_close(bias, torch.tensor([1.0, -1.0, 0.0]), rtol=1e-5, atol=0)
    coarse = torch.zeros(3, dtype=torch.bfloat16)
    for _ in range(1000):
        move_balance(coarse, [0, 6, 3], 1e-3)
    assert coarse.tolist() == [0.5, -0.5, 0.0]


def test_one_step_of_the_bias_for_all_micro_batches_and_workers() -> None:
    """Counts of the whole step decide, once, the same on every worker; a skipped step moves none;
    and no gradient reaches the bias."""
    sets = FAMILIES["deepseek-v3"] | {"train__loss__bias_rate": 0.125}
    layout = {
        "parallel__micro_batch_size": 1,
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 3,
    }
    config = tiny(**sets, **layout)
    batch = batch_of(config)
    nothing = type(batch)(batch.tokens_BS, torch.full_like(batch.targets_BS, -100))
    with threads(config, [batch, nothing]) as run:
        reports = run.each(lambda runtime: runtime.run_step(0))
        choices = next(iter(reports.values())).choices_LE
        for runtime in run.workers.values():
            for name, bias in runtime.parameters.balances.items():
                counts = torch.tensor(choices[int(name.split(".")[1])], dtype=torch.float64)
                assert counts.sum() == 2 * batch.tokens_BS.numel()
                assert torch.equal(bias, 0.125 * torch.sign(counts.mean() - counts))
                assert name not in runtime.parameters.grads
        held = {
            str(worker): {n: b.clone() for n, b in runtime.parameters.balances.items()}
            for worker, runtime in run.workers.items()
        }
        assert held["A0.0"].keys() == held["A0.1"].keys() != set()
        skipped = run.each(lambda runtime: runtime.run_step(1))
        assert all(report.skipped for report in skipped.values())
        for worker, runtime in run.workers.items():
            for name, bias in runtime.parameters.balances.items():
                assert torch.equal(bias, held[str(worker)][name])
