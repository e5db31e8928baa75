"""Whether a job that is stopped has time to end."""

import pytest

from disagmoe.api.grace import short_grace

JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}


@pytest.mark.parametrize(
    ("environ", "given"),
    [(JOB, "3"), ({**JOB, "RAY_JOB_STOP_WAIT_TIME_S": "12"}, "12")],
    ids=["Ray's default", "too little"],
)
def test_a_job_that_has_too_little_is_told_so(environ: dict[str, str], given: str) -> None:
    assert short_grace(environ, needed_s=10.0) == (
        f"`ray job stop` will kill this job {given} s after SIGTERM, but the end of a step may "
        "take 10 s; submit it with --runtime-env-json "
        '\'{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "15"}}\''
    )


@pytest.mark.parametrize("environ", [{}, {**JOB, "RAY_JOB_STOP_WAIT_TIME_S": "15"}])
def test_others_are_not(environ: dict[str, str]) -> None:
    assert short_grace(environ, needed_s=10.0) is None
