"""Pages of one look, each a file that opens from disk: Jinja templates and the style that they share."""

from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("page.css")


def template(path: Path, **filters: Any) -> Any:
  """The Jinja template in this file; its variable `css` is the shared style, and one that is not given is an error.

  Args:
    path: of the template.
    filters: by name, beside Jinja's own.
  """
  import jinja2  # only now: most commands make no page
  import markupsafe

  environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
  environment.filters |= filters
  environment.globals["css"] = markupsafe.Markup(STYLE.read_text(encoding="utf-8"))
  return environment.from_string(path.read_text(encoding="utf-8"))
