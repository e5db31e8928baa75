"""How long a Ray job that is stopped may take to end, and whether that is enough."""

from collections.abc import Mapping

from disagmoe.cluster.join import in_ray_job

GRACE_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
_RAYS_DEFAULT_S = 3  # ray.dashboard.modules.job.job_supervisor, Ray 2.40 to 2.60
_CLEAN_UP_S = 5.0
"""For the result, and for ending the workers."""


def short_grace(environ: Mapping[str, str], needed_s: float) -> str | None:
    """Say that `ray job stop` would kill this job before a stop that takes `needed_s` is through;
    None where there is time enough, or this is no job."""
    if not in_ray_job(environ):
        return None
    given_s = _seconds(environ.get(GRACE_VARIABLE, ""))
    wanted_s = needed_s + _CLEAN_UP_S
    if given_s >= wanted_s:
        return None
    return (
        f"`ray job stop` will kill this job {given_s:g} s after SIGTERM, but the end of a step may "
        f"take {needed_s:g} s; submit it with --runtime-env-json "
        f'\'{{"env_vars": {{"{GRACE_VARIABLE}": "{wanted_s:.0f}"}}}}\''
    )


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else _RAYS_DEFAULT_S
