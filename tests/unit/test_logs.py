"""Log lines carry time, rank and role."""

import logging
import re

import pytest

from hpcrl import logs
from hpcrl.errors import StorageError


@pytest.fixture(autouse=True)
def restore_logger():
    logger = logging.getLogger("hpcrl")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in set(logger.handlers) - set(before[0]):
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = before


def test_line_has_time_rank_and_role(capsys):
    logs.configure(3, "actor 1", "INFO")
    logging.getLogger("hpcrl.roles.actor").info("pulled version %d", 7)
    assert re.fullmatch(r"\[\d\d:\d\d:\d\d rank 3 actor 1\] pulled version 7\n", capsys.readouterr().err)


def test_default_level_shows_warnings_only(capsys):
    logs.configure(0, "")
    logging.getLogger("hpcrl.x").info("quiet")
    logging.getLogger("hpcrl.x").warning("loud")
    assert capsys.readouterr().err.endswith("rank 0] warning: loud\n")


def test_configuring_twice_does_not_print_twice(capsys):
    logs.configure(0, "learner 0", "INFO")
    logs.configure(0, "learner 0", "INFO")
    logging.getLogger("hpcrl").info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_root_logger_is_untouched(capsys):
    before = logging.getLogger().handlers[:]
    logs.configure(0, "learner 0", "INFO")
    assert logging.getLogger().handlers == before
    assert not logging.getLogger("hpcrl").propagate


def test_events_file_gets_the_same_lines(tmp_path, capsys):
    logs.configure(0, "monitor 0", "INFO")
    logs.log_to_file(tmp_path / "events.log")
    logging.getLogger("hpcrl").info("checkpoint written")
    assert (tmp_path / "events.log").read_text() == capsys.readouterr().err


def test_events_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(StorageError, match="missing/events.log"):
        logs.log_to_file(tmp_path / "missing" / "events.log")
