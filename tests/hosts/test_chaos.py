"""Fifty seeded kills of training processes and commands: results equal those of undisturbed jobs."""

import pytest
from helpers.commands import Command

KILLS = {"train": 25, "two_processes": 9, "compare": 5, "sweep": 5, "elastic": 6}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("jobs", [("train", "compare"), ("two_processes", "sweep", "elastic")])
def test_kills_do_not_change_results(jobs):
  running = {
    job: Command(f"--kills={KILLS[job]}", "--seed=1", f"--jobs={job}", file="docs/launch/chaos.py") for job in jobs
  }
  for job, command in running.items():
    done = command.end(1200)
    assert done.code == 0, done.error  # not `done`, whose text pytest would shorten
    assert done.out == f"{job}: {KILLS[job]} kills, equal\n"


def test_there_are_fifty_kills():
  assert sum(KILLS.values()) == 50
