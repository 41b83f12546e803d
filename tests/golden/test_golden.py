"""The stored results of short runs, a comparison and predictions are reproduced."""

from pathlib import Path

import pytest
from golden import golden
from helpers.forks import Fork

SLOW = ("scale_weak",)  # simulates jitter for more than a minute


@pytest.mark.parametrize(
  "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in golden.cases()]
)
def test_results_are_reproduced(case, tmp_path, monkeypatch):
  def run_command(*arguments: str) -> None:
    files: list[Path] = [tmp_path / "out", tmp_path / "error"]
    # Compiled as a user's run is, whatever flags the other tests have.
    command = Fork([*arguments], golden.ROOT, files[0], files[1], without=["XLA_FLAGS"])
    _, error = command.communicate(timeout=600)
    assert command.returncode == 0, error

  if not case.startswith("scale"):  # whose figures a fork does not draw
    monkeypatch.setattr(golden, "run_command", run_command)
  exact = golden.is_machine_of_results()
  if case == "compare" and not exact:
    pytest.skip("p-values depend on the last bits, which are of another processor or JAX version")
  assert not golden.differences(case, exact)
