"""One comparison with its page and pictures, for all tests of reports that only read them."""

import pytest
from helpers.comparisons import realistic

from ddl.report import page


@pytest.fixture(scope="session")
def realistic_page(tmp_path_factory):
  """The path of its page."""
  return page.write_report(realistic(tmp_path_factory.mktemp("realistic")))
