"""User-defined functions by their addresses, `module:name` or `path/to/file.py:name`, and the import of their files.

A file can import the modules in its folder, as a script can. Two folders may contain modules of the same name, such as
models.py: each file imports those of its own folder.
"""

import contextlib
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import site
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Spec, Taxonomy, Wrapper

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


def importable_files(file: Path) -> contextlib.AbstractContextManager[None]:
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
    with importable_files(file):
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


UNDECLARED = Taxonomy("data", *["not declared"] * 4)


_found: dict[str, set[str]] = {}  # by section the addresses that led to an object since a config was begun
_allow: ContextVar[Callable[[str], None]] = ContextVar("allow", default=lambda address: None)  # raises for a bad one


class Unavailable(ValueError):
  """An object of the user's own that its address does not lead to."""


def is_address(name: Any) -> bool:
  """Whether a name is the address of an object of the user's own."""
  return isinstance(name, str) and ":" in name


def own(value: Any, **settings: Any) -> dict[str, Any]:
  """A section of a config for an object of one's own: `config.model = own(my_model, width=3)`.

  value: the factory of a model, data set, partition, optimizer, schedule, times or barrier; an algorithm's or a
  wrapper's factory, or its Spec or Wrapper. settings: its keyword arguments.

  Raises:
    ValueError: for what is not at the top level of a file, such as a lambda: it could not be found again by a resume.
  """
  for name, entry in (COLLECTIVE | SERVER | WRAPPERS).items():
    if value is entry.factory:  # such as ddl.dasgd
      return {"name": name, **settings}
  made = getattr(value, "factory", value)  # of a Spec or a Wrapper
  scopes = [
    getattr(inspect.unwrap(made) if callable(made) else made, "__globals__", {}),
    sys._getframe(1).f_globals,
  ]  # a function's own file, or the caller's
  found = [(scope, name) for scope in scopes for name, each in list(scope.items()) if each is value]
  if not found:
    raise ValueError(f"{value!r}; invalid: must be defined at the top level of a file, so that it can be found again")
  name = address(*found[0])
  if name.startswith("__main__:"):  # of a notebook or a prompt: without a file
    told = f"{name.removeprefix('__main__:')} is of this session alone: no other one can load or resume what it makes"
    warnings.warn(f"{told}; define it in a file and import it", stacklevel=2)
  return {"name": name, **settings}


@contextlib.contextmanager
def checked(allow: Callable[[str], None]) -> Iterator[None]:
  """Within it `allow` is called with each address before its file is imported, and may raise."""
  token = _allow.set(allow)
  try:
    yield
  finally:
    _allow.reset(token)


def absolute(name: str) -> str:
  """The address so that it holds in any working directory, whatever can be imported there."""
  where, _, attribute = name.rpartition(":")
  file = Path(where if where.endswith(".py") else f"{where}.py").expanduser().resolve()
  if where.endswith(".py") or (file.is_file() and where not in sys.modules):
    return f"{file}:{attribute}"
  _allow.get()(name)
  try:
    return address(vars(importlib.import_module(where)), attribute)
  except Exception:  # `entry` says what is wrong with it
    return name


def found(kind: str, name: str) -> Any:
  """What an address leads to: of an algorithm a Spec, of a wrapper a Wrapper, else a function. Raises Unavailable."""
  _allow.get()(name)
  where, _, attribute = name.rpartition(":")
  file = Path(where).expanduser().resolve() if where.endswith(".py") else None
  try:
    module = module_of(file) if file else importlib.import_module(where)
  except Missing as error:
    raise Unavailable(
      f"config.{kind}.name is {name}: the file that defines {attribute} is missing; put it back, or name another"
    ) from error
  except Exception as error:  # the file is the user's, and so are its errors
    why = f"{type(error).__name__}: {error}"
    raise Unavailable(f"config.{kind}.name is {name}: importing {where} fails ({why})") from error
  value, wanted = getattr(module, attribute, None), {"algorithm": Spec, "wrapper": Wrapper}.get(kind)
  if value is None:
    own = {key: each for key, each in vars(module).items() if not key.startswith("_")}
    there = [
      key
      for key, each in own.items()
      if getattr(each, "__module__", "") == module.__name__ or (wanted and isinstance(each, wanted))
    ]
    near = difflib.get_close_matches(attribute, there, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise Unavailable(
      f"config.{kind}.name is {name}: {where} has no {attribute}; {hint}it has {', '.join(there) or 'nothing'}"
    )
  _found.setdefault(kind, set()).add(name)
  if wanted and isinstance(value, wanted):
    return value
  if not callable(value) or isinstance(value, tuple | type):
    expected = f"a {wanted.__name__} or its factory" if wanted else "a function"
    raise ValueError(f"config.{kind}.name is {name}; invalid: must be {expected}, not {type(value).__name__}")
  return _described(wanted, value, name) if wanted else value


def function_at(address: str, option: str) -> Callable[..., Any]:
  """Return the function at an address that the user passes with an option. ValueError, one line, without one."""
  where, _, attribute = address.rpartition(":")
  try:
    module = module_of(Path(where).expanduser().resolve()) if where.endswith(".py") else None
    value = getattr(module or importlib.import_module(where), attribute)
  except Exception as error:  # the file is the user's, and so are its errors
    why = f"{type(error).__name__}: {error}"
    raise ValueError(f"{option} must be a function as FILE.py:NAME or MODULE:NAME, got {address} ({why}).") from error
  if not callable(value):
    raise ValueError(f"{option} must be a function, got {type(value).__name__} at {address}.")
  return value


def begin() -> None:
  """Forget which objects were found: another config is begun."""
  _found.clear()


def known(kind: str) -> list[str]:
  """The addresses of the config's own objects for a section, any of which a wrong name may mean; as from here."""
  return sorted(map(_written, _found.get(kind, ())))


def _written(address: str) -> str:
  where, _, attribute = address.rpartition(":")
  file, here = Path(where), Path.cwd()
  return f"{file.relative_to(here)}:{attribute}" if file.is_relative_to(here) else address


def beside(name: str) -> contextlib.AbstractContextManager[None]:
  """While a function is called: what it imports then is found beside its file."""
  where = name.rpartition(":")[0]
  return importable_files(Path(where).expanduser().resolve()) if where.endswith(".py") else contextlib.nullcontext()


@functools.cache
def _described(kind: type[Any], made: Callable[..., Any], name: str) -> Any:
  """A Spec or Wrapper of a bare factory, with the first line of its docstring as the title."""
  title = (inspect.getdoc(made) or name.rpartition(":")[2]).splitlines()[0]
  return Spec(made, title, name, UNDECLARED) if kind is Spec else Wrapper(made, title, name)
