"""Files of the user's own as Python modules: what lies beside a file can be imported in it, as in a script that runs.

Two folders may hold modules of one name, such as models.py: each file finds those of its own folder.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = ("ddl", "experiments")  # packages that no folder of the user's replaces
_PATHS = [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
LIBRARIES = {*_PATHS, *(path.resolve() for path in _PATHS), Path(site.getusersitepackages())}
_FILES: dict[Path, ModuleType] = {}  # the module of each file that was asked for
_ASIDE: dict[Path, dict[str, ModuleType]] = {}  # folder -> its modules whose names `sys.modules` has for another's


class Missing(Exception):
  """A file that is not there."""


def module_of(file: Path) -> ModuleType:
  """The module of a file, run once in a process: one that is imported already, or the script, is not run again.

  Raises:
    Missing: where there is no file; and whatever the file raises.
  """
  if file not in _FILES:
    _FILES[file] = _loaded(file) or _imported(file)
  return _FILES[file]


def run(file: Path) -> ModuleType:
  """The module of a file that is run anew, as an edited config is to be, and is the file's from then on."""
  name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"  # no other module's
  spec = importlib.util.spec_from_file_location(name, file)
  assert spec and spec.loader
  module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    sys.modules |= {name: before} if before else {}
    raise
  _FILES[file] = module
  return module


@contextlib.contextmanager
def importable(*folders: Path) -> Iterator[None]:
  """The folders' modules come first, and no other folder's of the same names; later they come after all libraries."""
  paths, others = [str(folder) for folder in folders], _modules(_named_alike(folders))
  for name in others:
    del sys.modules[name]
  sys.modules |= _ASIDE.get(folders[0], {})
  sys.path[:0] = paths
  importlib.invalidate_caches()
  try:
    yield
  finally:
    for path in paths:
      sys.path.remove(path)
    tops = {name.partition(".")[0] for name in others}
    if found := _modules(lambda name: name.partition(".")[0] in tops):
      _ASIDE[folders[0]] = found
    for name in found:
      del sys.modules[name]
    sys.modules |= others
    sys.path += [path for path in paths if path not in sys.path]  # for what functions import when they are called


def beside(file: Path) -> contextlib.AbstractContextManager[None]:
  """`importable` for what lies beside a file, and for its package."""
  return importable(*dict.fromkeys((file.parents[len(_packages(file))], file.parent)))


def _packages(file: Path) -> list[str]:
  """The packages that a file is in, from the outermost on."""
  inside = itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), file.parents)
  return [folder.name for folder in inside][::-1]


def address(scope: Mapping[str, Any], name: str) -> str:
  """Where a name of a module can be found again: in its file, or by import where it is of an installed package."""
  where, file = scope["__name__"], scope.get("__file__")  # a notebook has none
  return f"{where}:{name}" if not file or installed(where, Path(file)) else f"{Path(file).resolve()}:{name}"


def installed(name: str, file: Path) -> bool:
  """Whether a module is of a library, which has its name anywhere."""
  if name.partition(".")[0] in OURS or {"site-packages", "dist-packages"} & {*file.parts}:
    return True
  return not LIBRARIES.isdisjoint(file.parents)


def _file(module: Any) -> Path | None:
  file = getattr(module, "__dict__", {}).get("__file__")  # without a lazy module's __getattr__
  return Path(file) if file else None


def _loaded(file: Path) -> ModuleType | None:
  """The module that was imported from a file."""
  for module in [*sys.modules.values(), *(module for each in _ASIDE.values() for module in each.values())]:
    there = _file(module)
    if there and there.name == file.name and there.resolve() == file:
      return module
  return None


def _imported(file: Path) -> ModuleType:
  """The module by its name where an import beside it would find it so, as both are to be one; else by its file."""
  if not file.is_file():
    raise Missing(file)
  name = ".".join([*_packages(file), *[file.stem] * (file.name != "__init__.py")])
  top = name.partition(".")[0]
  library = _origin(top)
  try:
    with beside(file):
      if (not library or not installed(top, library)) and _origin(name) == file:
        return importlib.import_module(name)
      return run(file)
  except ModuleNotFoundError as error:  # of a folder above that is a package without an __init__.py
    wanted = (error.name or "").partition(".")[0]
    root = next((folder.parent for folder in file.parents if folder.name == wanted), None)
    if not wanted or root is None:
      raise
  with importable(root):
    return importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def _origin(name: str) -> Path | None:
  """The file that an import of the name would take."""
  try:
    spec = importlib.util.find_spec(name)
  except (ImportError, ValueError):  # a parent is missing; a module without a spec, as a script is
    return None
  return Path(spec.origin).resolve() if spec and spec.origin else None


def _modules(wanted: Callable[[str], bool]) -> dict[str, ModuleType]:
  return {name: module for name, module in list(sys.modules.items()) if wanted(name)}


def _named_alike(folders: tuple[Path, ...]) -> Callable[[str], bool]:
  """Whether a module of this name came from elsewhere, though the folders have one too."""
  here = {file.stem for folder in folders for file in folder.glob("*.py")}
  here |= {file.parent.name for folder in folders for file in folder.glob("*/__init__.py")}

  def wanted(name: str) -> bool:
    top = name.partition(".")[0]
    file = _file(sys.modules.get(top)) if top in here and top != "__main__" else None
    return file is not None and not installed(top, file) and not {*folders} & {*file.resolve().parents}

  return wanted
