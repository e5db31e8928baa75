"""Train from Python: `python docs/examples/train.py run.toml`."""

import sys

from disagmoe.api import Callback, RunConfig, StepResult, Trainer


class Watch(Callback):
    """Prints the loss, and complains when it is not a number."""

    def on_step(self, step: StepResult) -> None:
        if step.step % 10 == 0:
            print(f"step {step.step}: loss {step.loss:.4f}, {step.tokens_per_s:.0f} tokens/s")
        if step.loss != step.loss:
            raise RuntimeError(f"the loss of step {step.step} is not a number")


if __name__ == "__main__":
    result = Trainer(RunConfig.load(sys.argv[1], sys.argv[2:]), callbacks=[Watch()]).fit()
    print(result.status, result.last_loss, result.path)
