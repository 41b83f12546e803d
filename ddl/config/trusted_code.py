"""Find and hash the files that run when a user-defined object is imported; check them before a run is resumed."""

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
  """Raised instead of importing code that a run folder refers to and the user has not approved."""


def files(address: str) -> list[Path]:
  """Return the file of an import path, its packages' files and all local files that they import, without importing any.

  Return [] for an object from a notebook, ddl or a built-in module.
  """
  first = _file(address.rpartition(":")[0]) if not _ours(address) else None
  read, pending = set[Path](), [first] if first else []
  while pending:
    file = pending.pop()
    if file not in read and file.is_file():
      read.add(file)
      pending += [*package_files(file), *_imported(file)]
  return sorted(read)


def digest(file: Path) -> str:
  """Return the SHA-256 of a file's bytes."""
  return hashlib.sha256(file.read_bytes()).hexdigest()


def check(
  folder: Path, recorded: Mapping[str, str], changed: bool, advice: str, alternative: str = ""
) -> Callable[[str], None]:
  """Return a function that raises Untrusted for import paths that must not be imported to resume a run.

  Args:
    folder: the run folder.
    recorded: hash by file, as recorded in the folder.
    changed: whether to accept files outside the folder that have changed since the folder was written.
    advice: text for the messages that says how to approve the code.
    alternative: text to append for a recorded file that has changed.
  """
  passed = set[str]()
  homes = {folder.absolute(), folder.resolve()}

  def allow(address: str) -> None:
    in_session = address.startswith("__main__:") and not getattr(sys.modules["__main__"], "__file__", None)
    if address in passed or _ours(address) or in_session:  # objects of a notebook or a prompt have no file
      return
    where = address.rpartition(":")[0]
    written = Path(where).expanduser().absolute() if where.endswith(".py") else None
    if written and any(written.is_relative_to(home) for home in homes):
      raise Untrusted(f"{written} is inside the run folder {folder} and not trusted; {advice}")
    if not (needed := files(address)) and written is None:
      raise Untrusted(f"{address}, recorded in {folder}, has no file to check and is not trusted; {advice}")
    for file in needed:
      if any(file.is_relative_to(home) for home in homes):
        raise Untrusted(f"{file} is inside the run folder {folder} and not trusted; {advice}")
      if str(file) not in recorded:
        raise Untrusted(f"{file} is not among the code files recorded in {folder}, so it is not trusted; {advice}")
      if not changed and recorded[str(file)] != digest(file):
        raise Untrusted(f"{file} has changed since {folder} was written, so it is not trusted; {advice}{alternative}")
    passed.add(address)

  return allow


def installed(name: str, file: Path) -> bool:
  """Return whether a module belongs to ddl or an installed library, and is thus the same in every working folder."""
  if name.partition(".")[0] in OURS or {"site-packages", "dist-packages"} & {*file.parts}:
    return True
  return not LIBRARIES.isdisjoint(file.parents)


def _ours(address: str) -> bool:
  """Return whether an import path belongs to ddl."""
  return address.partition(":")[0].partition(".")[0] in OURS


def _file(where: str) -> Path | None:
  """Return the file of `path.py` or `package.module`, or None, without importing its parent packages."""
  if where.endswith(".py"):
    return Path(where).expanduser().resolve()
  top, *rest = where.split(".")
  try:
    spec = importlib.util.find_spec(top)
  except (ImportError, ValueError):
    return None
  for number, _ in enumerate(rest):
    folders = spec.submodule_search_locations if spec else None
    spec = PathFinder.find_spec(".".join([top, *rest[: number + 1]]), folders) if folders else None
  return Path(spec.origin).resolve() if spec and spec.has_location and spec.origin else None


def package_files(file: Path) -> Iterator[Path]:
  """Yield the `__init__.py` of each package that contains a file, innermost first."""
  for folder in file.parents:
    if not (folder / "__init__.py").is_file():
      return
    yield folder / "__init__.py"


def _imported(file: Path) -> Iterator[Path]:
  """Yield the local files that a file may import, whether they exist or not; see `_local` for where they may be."""
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
  """Yield the possible files of the absolute import `name` in a file.

  Yields nothing if the module belongs to ddl, or if the file belongs to an installed library and the module does not.

  The search covers the file's folder, the folders that contain its packages, and the parent of each enclosing folder
  that has the name of the top-level module.
  """
  top, packages = name.partition(".")[0], [init.parent for init in package_files(file)]
  if top in OURS or (installed("", file) and top not in [folder.name for folder in packages]):
    return  # an import of ddl or inside a library
  roots = [file.parent, *(folder.parent for folder in packages)]
  roots += [folder.parent for folder in file.parents if folder.name == top]
  for root in dict.fromkeys(roots):
    yield from _below(root, name)


def _below(root: Path, name: str) -> Iterator[Path]:
  """Yield the possible files of the module `name`, such as a.b, in a folder, and the `__init__.py` of its packages."""
  *outer, last = name.split(".")
  for part in outer:
    root = root / part
    yield root / "__init__.py"
  yield root / f"{last}.py"
  yield root / last / "__init__.py"
