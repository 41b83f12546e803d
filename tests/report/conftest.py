"""A comparison with its page, shared by the tests that only read them."""

import pytest
from helpers.comparisons import realistic, undrawn

from ddl.report import page


@pytest.fixture(scope="session")
def realistic_page(tmp_path_factory):
  """Write a realistic comparison's page with empty figures; return its path."""
  with undrawn():
    return page.write_report(realistic(tmp_path_factory.mktemp("realistic")))
