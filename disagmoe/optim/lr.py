"""The learning rate as a pure function of the step."""

import math

from disagmoe.config.train import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """Return the learning rate of `step`, counted from 0.

    Warm-up: step i of the first W steps has peak * (i + 1) / W, so that step W - 1 has the peak;
    W = 0 starts at the peak, W >= steps warms up to the end. After it:

    cosine: from the peak at step W - 1 (or 0) to the floor at the last step, both exact;
    wsd: the peak, but the last D steps fall linearly, k/D of the way to the floor at the k-th of
    them; the last step has the floor. D = 0 never falls. Where warm-up and fall overlap, the lower
    of the two holds;
    constant: the peak.

    The floor is peak * min_lr_ratio. Steps after the last one keep the last one's rate.
    """
    schedule, peak = train.lr_schedule, train.optimizer.lr
    floor = peak * schedule.min_lr_ratio
    step = min(step, train.steps - 1)
    warm = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    match schedule.kind:
        case "constant":
            return peak * warm
        case "wsd":
            steps_left = train.steps - 1 - step
            done = max(0.0, 1 - steps_left / schedule.decay_steps) if schedule.decay_steps else 0.0
            return min(peak * warm, floor + (peak - floor) * (1 - done))
        case "cosine":
            if step < schedule.warmup_steps:
                return peak * warm
            first = max(schedule.warmup_steps - 1, 0)
            length = train.steps - 1 - first
            progress = (step - first) / length if length else 0.0
            return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))
