"""The stored results of short runs, a comparison and predictions are reproduced."""

import pytest
from golden import golden

SLOW = ("scale_weak",)  # simulates jitter for more than a minute


@pytest.mark.parametrize(
  "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in golden.cases()]
)
def test_results_are_reproduced(case):
  exact = golden.is_machine_of_results()
  if case == "compare" and not exact:
    pytest.skip("p-values depend on the last bits, which are of another processor or JAX version")
  assert not golden.differences(case, exact)
