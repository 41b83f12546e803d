"""User-defined functions by their addresses, `path/to/file.py:name` or `package.module:name`, and their import.

A file runs like a script: with its folder first on `sys.path`, so that it can import other files from there. A file in
a package (a folder with `__init__.py`) is imported as a module of it. A module that this process has imported, such as
its script, does not run again unless its file has changed since. Python has one module of a name: two files that import
different `models.py` from their folders need two processes.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Spec, Taxonomy, Wrapper
from ddl.config.trusted_code import files, installed, package_files
from ddl.errors import OptionError, nearest

UNDECLARED = Taxonomy("data", *["not declared"] * 4)
LOADED = "@"  # in the names of modules that `load` has run, between the file's name and its digest

_allow: ContextVar[Callable[[str], None]] = ContextVar("allow", default=lambda address: None)  # raises for a bad one


class Unavailable(OptionError):
  """A user-defined function that its address does not lead to."""


def is_address(name: Any) -> bool:
  """Return whether a name is the address of a user-defined function."""
  return isinstance(name, str) and ":" in name


@contextlib.contextmanager
def checked(allow: Callable[[str], None]) -> Iterator[None]:
  """Call `allow` within it with each address before its file is imported; it may raise."""
  token = _allow.set(allow)
  try:
    yield
  finally:
    _allow.reset(token)


@contextlib.contextmanager
def importable(address: str) -> Iterator[None]:
  """Put the folder of an address's file first on `sys.path`, and the folder that its package is in."""
  where = address.rpartition(":")[0]
  file = Path(where).expanduser().resolve()
  folders = {str(file.parent), str(file.parents[len(_packages(file))])} if where.endswith(".py") else set[str]()
  sys.path[:0] = folders
  importlib.invalidate_caches()
  try:
    yield
  finally:
    for folder in folders:
      sys.path.remove(folder)


def load(file: Path) -> ModuleType:
  """Return the module of a file, an absolute path; it runs unless it has run in this process with this content."""
  content = file.read_bytes()
  name = f"{file.stem}{LOADED}{hashlib.sha256(str(file).encode() + content).hexdigest()[:16]}"
  if module := sys.modules.get(name) or _imported(file):
    return module
  packages = _packages(file)
  for other in files(f"{file}:"):
    if other != file or packages:
      _check_name(other)
  with importable(f"{file}:"):
    if packages:
      return importlib.import_module(".".join([*packages, *[file.stem] * (file.name != "__init__.py")]))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    try:
      spec.loader.exec_module(module)
    except BaseException:
      del sys.modules[name]
      raise
    return module


def _packages(file: Path) -> list[str]:
  """Return the packages that a file is in, from the outermost on."""
  return [init.parent.name for init in package_files(file)][::-1]


def _imported(file: Path) -> ModuleType | None:
  """Return the module that was imported from a file under another name, such as the script `__main__`."""
  for name, module in list(sys.modules.items()):
    path = vars(module).get("__file__") if LOADED not in name else None  # without a lazy module's __getattr__
    if path and Path(path).name == file.name and Path(path).resolve() == file:
      return module
  return None


def _check_name(file: Path) -> None:
  """Raise OptionError if another file has been imported under the name that this one would get."""
  names = [*_packages(file), *[file.stem] * (file.name != "__init__.py")]
  other = Path(getattr(sys.modules.get(".".join(names)), "__file__", None) or file)
  same = other.resolve() == file or (other.exists() and other.read_bytes() == file.read_bytes())
  if not same and not installed(names[0], other):
    advice = f"This process has imported {other} already: rename one of the two, or start another process."
    raise OptionError(str(file), "the only user-defined module of its name", advice=advice)


def own(value: Any, **settings: Any) -> dict[str, Any]:
  """Return a section of a config for a user-defined function: `config.model = own(my_model, width=3)`.

  Raises ValueError for a function that is not at the top level of a file, such as a lambda, as no resume could find it.

  Args:
    value: factory of a section; for an algorithm or a wrapper also its Spec or Wrapper.
    settings: its keyword arguments.
  """
  for name, spec in (COLLECTIVE | SERVER | WRAPPERS).items():
    if value is spec.factory:  # such as ddl.dasgd
      return {"name": name, **settings}
  user_factory = getattr(value, "factory", value)  # of a Spec or a Wrapper
  function = inspect.unwrap(user_factory) if callable(user_factory) else user_factory
  scopes = [getattr(function, "__globals__", {}), sys._getframe(1).f_globals]  # the function's file, or the caller's
  places = [(scope, name) for scope in scopes for name, other in list(scope.items()) if other is value]
  if not places:
    raise OptionError("a user-defined function", "at the top level of a file", repr(value))
  name = address(*places[0])
  if name.startswith("__main__:"):  # of a notebook or a prompt: without a file
    text = f"{name.removeprefix('__main__:')} exists in this session only, so that no other one can load or resume runs"
    warnings.warn(f"{text} of it; define it in a file and import it", stacklevel=2)
  return {"name": name, **settings}


def address(scope: Mapping[str, Any], name: str) -> str:
  """Return the address of a name of a module: by its file, or by import where it is of an installed package."""
  where, file = scope["__name__"], scope.get("__file__")  # a notebook has none
  return f"{where}:{name}" if not file or installed(where, Path(file)) else f"{Path(file).resolve()}:{name}"


def absolute(name: str) -> str:
  """Return the address with an absolute path."""
  where, _, attribute = name.rpartition(":")
  return f"{Path(where).expanduser().resolve()}:{attribute}" if where.endswith(".py") else name


def find(kind: str, name: str) -> Any:
  """Return a Spec for an algorithm's address, a Wrapper for a wrapper's, else a function. Raises Unavailable."""
  value = _value(name, f"config.{kind}.name")
  expected = {"algorithm": Spec, "wrapper": Wrapper}.get(kind)
  if expected and isinstance(value, expected):
    return value
  if not callable(value) or isinstance(value, tuple | type):
    condition = f"a {expected.__name__} or its factory" if expected else "a function"
    raise OptionError(f"config.{kind}.name", condition, f"{type(value).__name__} at {name}")
  return _described(expected, value, name) if expected else value


def function_at(address: str, option: str) -> Callable[..., Any]:
  """Return the function at an address that the user passes with an option. Raises Unavailable."""
  value = _value(address, option)
  if not callable(value):
    raise OptionError(option, "a function", f"{type(value).__name__} at {address}")
  return value


def _value(name: str, option: str) -> Any:
  """Return what a module has by the name of an address."""
  _allow.get()(name)
  where, _, attribute = name.rpartition(":")
  file = Path(where).expanduser().resolve() if where.endswith(".py") else None
  if file and not file.is_file():
    raise Unavailable(option, f"in a file that exists; that of {attribute} is missing", name)
  try:
    module = load(file) if file else importlib.import_module(where)
  except Exception as error:  # the file is the user's, and so are its errors
    why = f"Importing {where} fails ({type(error).__name__}: {error})."
    raise Unavailable(option, "FILE.py:NAME or MODULE:NAME of a function", name, why) from error
  if attribute not in vars(module):
    known = [
      key
      for key, value in vars(module).items()
      if not key.startswith("_")
      and (isinstance(value, Spec | Wrapper) or getattr(value, "__module__", "") == module.__name__)
    ]
    condition = f"one of the names in {where}, {', '.join(known) or 'none'}"
    raise Unavailable(option, condition, name, nearest(attribute, known))
  return vars(module)[attribute]


@functools.cache
def _described(kind: type[Any], function: Callable[..., Any], name: str) -> Any:
  """Return a Spec or Wrapper of a bare factory, with the first line of its docstring as the title."""
  title = (inspect.getdoc(function) or name.rpartition(":")[2]).splitlines()[0]
  return Spec(function, title, name, UNDECLARED) if kind is Spec else Wrapper(function, title, name)
