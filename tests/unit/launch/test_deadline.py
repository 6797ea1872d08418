"""When the job is ended, as its environment says."""

import math

import pytest

from hpcrl.errors import ConfigError
from hpcrl.launch.deadline import expected_checkpoint_seconds, seconds_left


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, math.inf),
        ({"HPCRL_END_TIME": "1060"}, 60),
        ({"SLURM_JOB_END_TIME": "1060.5"}, 60.5),
        ({"HPCRL_END_TIME": "1060", "SLURM_JOB_END_TIME": "1050"}, 50),
        ({"HPCRL_END_TIME": "", "SLURM_JOB_END_TIME": "1050"}, 50),
        ({"HPCRL_END_TIME": "990", "SLURM_JOB_END_TIME": "1050"}, 50),  # that of another job
        ({"HPCRL_END_TIME": "990"}, math.inf),
    ],
)
def test_the_first_end_that_is_still_to_come_counts(environ, expected):
    assert seconds_left(environ, now=1000.0) == expected


@pytest.mark.parametrize("text", ["N/A", "2026-01-01T00:00:00", "nan"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="HPCRL_END_TIME: expected the seconds since 1970"):
        seconds_left({"HPCRL_END_TIME": text}, now=0.0)


def test_a_first_checkpoint_is_expected_to_take_longer_where_replay_is_large():
    assert expected_checkpoint_seconds(0) == 5
    assert expected_checkpoint_seconds(7_056_000_000) == pytest.approx(75.56)
