"""One comparison with its page and pictures, for all tests of reports that only read them."""

import pytest
from helpers.comparisons import realistic

from experiments.report import report


@pytest.fixture(scope="session")
def realistic_page(tmp_path_factory):
  """The path of its page."""
  return report.write_report(realistic(tmp_path_factory.mktemp("realistic")))
