"""Pages of one look, each a file that opens from disk: Jinja templates and the style that they share."""

import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("templates")
UNITS = r"%|(?:[nµm]?s|[kMGTP]?B(?:/s)?|M)\b"


def template(name: str) -> Any:
  """The Jinja template of this name, which may include the others; an undefined variable is an error.

  Its variable `css` is the shared style; the filter `unbroken` keeps 97.2 ± 1.2 % on one line, a number with its unit.
  """
  import jinja2  # only now: most commands make no page
  import markupsafe

  loader = jinja2.FileSystemLoader(FOLDER)
  environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, loader=loader)
  environment.filters["unbroken"] = _unbroken
  environment.globals["css"] = markupsafe.Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
  return environment.get_template(name)


def verbatim(*files: Path) -> Any:
  """The text of style sheets or scripts, one after the other, for an element of a page."""
  import markupsafe

  return markupsafe.Markup("\n".join(file.read_text(encoding="utf-8") for file in files))


def _unbroken(text: str) -> str:
  return re.sub(rf"(?<=[\d)]) (?=±|{UNITS})|(?<=±) ", "\N{NO-BREAK SPACE}", text)
