"""Errors of Python and the libraries about a user's mistake, in plain words."""

import re

PLAIN = {  # what absl and ml_collections say of a flag's value: ours
  r"invalid literal for int\(\).*": "is not an integer, such as 2",
  r"could not convert string to float.*": "is not a number, such as 0.5",
  r"\('Non-boolean argument to boolean flag.*": "is neither True nor False",
  r"Failed to parse .* as a ConfigDict.*": "is no dictionary, such as {'label': {'key': value}}",
}


def plain(error: Exception) -> str:
  """The error with the flag or the file that is at fault."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    return f"{error.filename}: {error.strerror.lower()}; give another path"
  for theirs, ours in PLAIN.items():
    if found := re.fullmatch(f"flag (.*?): {theirs}", str(error), re.DOTALL):
      return f"{found[1]} {ours}"
  return str(error)
