"""Which files an address of a user-defined object runs, their hashes, and the check before a resume runs them."""

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

OURS = ("ddl", "experiments")
_PATHS = [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
LIBRARIES = {*_PATHS, *(path.resolve() for path in _PATHS), Path(site.getusersitepackages())}


class Untrusted(ValueError):
  """Code that a run folder names, and that is not run without the user's consent."""


def files(address: str) -> list[Path]:
  """Return the file of an address, the packages around it, and what these import from their folder.

  By reading, without an import; [] for an object of a notebook, of ddl or of a built-in module.
  """
  first = _file(address.rpartition(":")[0]) if not _ours(address) else None
  read, left = set[Path](), [first] if first else []
  while left:
    file = left.pop()
    if file not in read and file.is_file():
      read.add(file)
      left += [*package_files(file), *_imported(file)]
  return sorted(read)


def digest(file: Path) -> str:
  """Return the SHA-256 of a file's bytes."""
  return hashlib.sha256(file.read_bytes()).hexdigest()


def check(folder: Path, recorded: Mapping[str, str], changed: bool, advice: str) -> Callable[[str], None]:
  """Return the function that raises Untrusted for an address that the run folder may not run.

  recorded: hashes by file, from when the folder was written; changed: whether files outside of the folder may have
  changed since; advice: how to run such a file nevertheless.
  """
  passed = set[str]()
  homes = {folder.absolute(), folder.resolve()}

  def allow(address: str) -> None:
    in_session = address.startswith("__main__:") and not getattr(sys.modules["__main__"], "__file__", None)
    if address in passed or _ours(address) or in_session:  # objects of a notebook or a prompt are in no file
      return
    where = address.rpartition(":")[0]
    written = Path(where).expanduser().absolute() if where.endswith(".py") else None
    if written and any(written.is_relative_to(home) for home in homes):
      raise Untrusted(f"{written} is code inside of the run folder {folder}, which is not run; {advice}")
    if not (needed := files(address)) and written is None:
      raise Untrusted(f"{folder} records the address {address}, which has no file to compare; {advice}")
    for file in needed:
      if any(file.is_relative_to(home) for home in homes):
        raise Untrusted(f"{file} is code inside of the run folder {folder}, which is not run; {advice}")
      if str(file) not in recorded:
        raise Untrusted(f"{folder} records no hash of {file}, so that it is not run; {advice}")
      if not changed and recorded[str(file)] != digest(file):
        raise Untrusted(f"{file} has changed since {folder} was written, so that it is not run; {advice}")
    passed.add(address)

  return allow


def installed(name: str, file: Path) -> bool:
  """Return whether a module is of ddl or of a library, which has its name anywhere."""
  if name.partition(".")[0] in OURS or {"site-packages", "dist-packages"} & {*file.parts}:
    return True
  return not LIBRARIES.isdisjoint(file.parents)


def _ours(address: str) -> bool:
  """Return whether an address belongs to ddl."""
  return address.partition(":")[0].partition(".")[0] in OURS


def _file(where: str) -> Path | None:
  """Return the file of `path.py` or of a dotted module, without the import of a parent package."""
  if where.endswith(".py"):
    return Path(where).expanduser().resolve()
  top, *rest = where.split(".")
  try:
    spec = importlib.util.find_spec(top)
  except (ImportError, ValueError):
    return None
  for number, _ in enumerate(rest):
    places = spec.submodule_search_locations if spec else None
    spec = PathFinder.find_spec(".".join([top, *rest[: number + 1]]), places) if places else None
  return Path(spec.origin).resolve() if spec and spec.has_location and spec.origin else None


def package_files(file: Path) -> Iterator[Path]:
  """Yield the `__init__.py` of each package that a file is in, the innermost first; its import runs them too."""
  for folder in file.parents:
    if not (folder / "__init__.py").is_file():
      return
    yield folder / "__init__.py"


def _imported(file: Path) -> Iterator[Path]:
  """Yield the files that a file's import statements name, of its folder and its package."""
  try:
    tree = ast.parse(file.read_bytes())
  except (SyntaxError, ValueError, RecursionError, MemoryError):  # the import raises it later
    return
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield from _local(file, alias.name)
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ""
      for name in [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]:
        if name and node.level:
          yield from _below(file.parents[min(node.level, len(file.parents)) - 1], name)
        elif name:
          yield from _local(file, name)


def _local(file: Path, name: str) -> Iterator[Path]:
  """Yield the files of an absolute import that lie in the file's folder, its package's, or a folder of that name."""
  top, packages = name.partition(".")[0], [init.parent for init in package_files(file)]
  if top in OURS or (installed("", file) and top not in [folder.name for folder in packages]):
    return  # what ddl or a library imports
  roots = [file.parent, *(folder.parent for folder in packages)]
  roots += [folder.parent for folder in file.parents if folder.name == top]
  for root in dict.fromkeys(roots):
    yield from _below(root, name)


def _below(root: Path, name: str) -> Iterator[Path]:
  """Yield the module of a dotted name below a folder, and its packages."""
  *outer, last = name.split(".")
  for part in outer:
    root = root / part
    yield root / "__init__.py"
  yield root / f"{last}.py"
  yield root / last / "__init__.py"
