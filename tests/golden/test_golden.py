"""Short runs, a comparison and predictions reproduce their stored results."""

import pytest
from golden import golden
from helpers.forks import Fork

DEFAULT = (  # one case each of:
  "sharded",  # synchronous SGD
  "async_easgd",  # a server in virtual time
  "compare",
  "plan_vgg",
)


@pytest.mark.parametrize(
  "case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in DEFAULT)) for case in golden.cases()]
)
def test_results_are_reproduced(case, tmp_path, monkeypatch):
  def run_command(*arguments: str) -> None:
    # Compile with the default options, not with those of the tests.
    command = Fork([*arguments], golden.ROOT, tmp_path / "out", tmp_path / "error", without=["XLA_FLAGS"])
    _, error = command.communicate(timeout=600)
    assert command.returncode == 0, error

  if not case.startswith("scale"):  # a fork does not write the figures, whose data are compared
    monkeypatch.setattr(golden, "run_command", run_command)
  exact = golden.is_machine_of_results()
  if case == "compare" and not exact:
    pytest.skip("the stored p-values are of another processor or JAX version")
  assert not golden.differences(case, exact)
