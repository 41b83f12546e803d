"""Fifty seeded kills over train, compare, sweep, two processes and an elastic job: all end as undisturbed ones do."""

import pytest
from helpers.commands import Command

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("job", ["train", "two processes", "compare", "sweep", "elastic"])
def test_ten_kills_change_nothing(job):
  done = Command("--kills=10", "--seed=1", f"--jobs={job}", file="docs/launch/chaos.py").end(1800)
  assert done.code == 0, done
  assert done.out.startswith(f"{job}: ") and done.out.endswith("kills, equal\n")
