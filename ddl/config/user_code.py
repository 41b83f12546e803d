"""Import user-defined functions by import path (address): `path/to/file.py:name` or `package.module:name`.

A file runs like a script: its folder is first on `sys.path`, so that it can import other files from there. A file in a
package (a folder with `__init__.py`) is imported as a module of the package. A module that this process has already
imported, such as its script, does not run again. The exception is a file that is in no package and that ddl has
imported itself: it runs again if its content has changed. As Python has only one module per name, two files that import
different `models.py` from their folders need separate processes.
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
MEMORY = "ddl.config.in_memory"  # the module of objects that exist only in this process
IN_MEMORY = "It is not stored with the run: pass the same object again to train or compare."
LOADED = "@"  # separates file name and hash in the names of modules that `load` has run

_allow: ContextVar[Callable[[str], None]] = ContextVar("allow", default=lambda address: None)  # may raise


class Unavailable(OptionError):
  """Raised if a user-defined function cannot be imported from its import path."""


def is_address(name: Any) -> bool:
  """Return whether a name is an import path, FILE.py:NAME or MODULE:NAME, of a user-defined function."""
  return isinstance(name, str) and ":" in name


def is_in_memory(name: str) -> bool:
  """Return whether a name refers to an object that exists only in this process, such as an optax optimizer."""
  return name.startswith(f"{MEMORY}:")


@contextlib.contextmanager
def checked(allow: Callable[[str], None]) -> Iterator[None]:
  """Within this context, call `allow` with each import path before importing its file; `allow` may raise."""
  token = _allow.set(allow)
  try:
    yield
  finally:
    _allow.reset(token)


@contextlib.contextmanager
def importable(address: str) -> Iterator[None]:
  """Within this context, put FILE.py's folder and the parent folder of its outermost package first on `sys.path`.

  address: FILE.py:NAME; for MODULE:NAME, `sys.path` does not change.
  """
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
  """Import a file (an absolute path) as a module.

  A file that this process has already imported does not run again. The exception is a file in no package that this
  function has imported: it runs again if its content has changed.
  """
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
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
    try:
      spec.loader.exec_module(module)
    except BaseException:
      del sys.modules[name]
      raise
    return module


def _packages(file: Path) -> list[str]:
  """Return the names of the packages that contain a file, outermost first."""
  return [init.parent.name for init in package_files(file)][::-1]


def _imported(file: Path) -> ModuleType | None:
  """Return the module imported from a file under another name, such as the script `__main__`, or None."""
  for name, module in list(sys.modules.items()):
    path = vars(module).get("__file__") if LOADED not in name else None  # avoids __getattr__ of lazy modules
    if path and Path(path).name == file.name and Path(path).resolve() == file:
      return module
  return None


def _check_name(file: Path) -> None:
  """Raise OptionError if a file with different content has been imported under the module name of this one."""
  names = [*_packages(file), *[file.stem] * (file.name != "__init__.py")]
  other = Path(getattr(sys.modules.get(".".join(names)), "__file__", None) or file)
  same = other.resolve() == file or (other.exists() and other.read_bytes() == file.read_bytes())
  if not same and not installed(names[0], other):
    advice = f"This process has already imported {other}: rename one file, or start another process."
    raise OptionError(str(file), "the only user-defined module with its name", advice=advice)


def custom(value: Any, **settings: Any) -> dict[str, Any]:
  """Return a config section for a user-defined function: `config.model = custom(my_model, width=3)`.

  Raises ValueError for a function that is not at the top level of a file, such as a lambda, because it could not be
  imported to resume a run.

  Args:
    value: the section's factory; for an algorithm or wrapper, also a Spec or Wrapper.
    settings: the factory's keyword arguments.
  """
  for name, spec in (COLLECTIVE | SERVER | WRAPPERS).items():
    if value is spec.factory:  # such as ddl.dasgd
      return {"name": name, **settings}
  user_factory = getattr(value, "factory", value)  # a Spec or Wrapper has a factory
  function = inspect.unwrap(user_factory) if callable(user_factory) else user_factory
  home = getattr(sys.modules.get(type(value).__module__), "__dict__", {})  # the file of a callable object's class
  scopes = [getattr(function, "__globals__", home), sys._getframe(1).f_globals]  # the function's file, or the caller's
  matches = [(scope, name) for scope in scopes for name, other in list(scope.items()) if other is value]
  if not matches:
    raise OptionError("a user-defined function", "defined at the top level of a file", repr(value))
  name = address(*matches[0])
  if name.startswith("__main__:"):  # defined in a notebook or at a prompt
    text = f"{name.removeprefix('__main__:')} exists only in this session, so other sessions cannot load or resume runs"
    warnings.warn(f"{text} that use it; define it in a file and import it", stacklevel=2)
  return {"name": name, **settings}


def address(scope: Mapping[str, Any], name: str) -> str:
  """Return the import path of a global name: FILE.py:NAME, or MODULE:NAME in an installed package or a notebook."""
  module, file = scope["__name__"], scope.get("__file__")  # a notebook has no file
  return f"{module}:{name}" if not file or installed(module, Path(file)) else f"{Path(file).resolve()}:{name}"


def absolute(name: str) -> str:
  """Make the file in an import path FILE.py:NAME absolute; return MODULE:NAME unchanged."""
  where, _, attribute = name.rpartition(":")
  return f"{Path(where).expanduser().resolve()}:{attribute}" if where.endswith(".py") else name


def find(kind: str, name: str) -> Any:
  """Import the object at an import path: depending on the section, a Spec, Wrapper or function.

  Raises Unavailable if it cannot be imported, and OptionError if it has another type.
  """
  value = _value(name, f"config.{kind}.name")
  expected = {"algorithm": Spec, "wrapper": Wrapper}.get(kind)
  if expected and isinstance(value, expected):
    return value
  if not callable(value) or isinstance(value, tuple | type):
    condition = f"a {expected.__name__} or its factory" if expected else "a function"
    raise OptionError(f"config.{kind}.name", condition, f"{type(value).__name__} at {name}")
  return _described(expected, value, name) if expected else value


def function_at(address: str, option: str) -> Callable[..., Any]:
  """Import the function at an import path. option: name of the setting, for errors.

  Raises Unavailable if it cannot be imported, and OptionError if it is not a function.
  """
  value = _value(address, option)
  if not callable(value):
    raise OptionError(option, "a function", f"{type(value).__name__} at {address}")
  return value


def _value(name: str, option: str) -> Any:
  """Import the object at an import path. Raises Unavailable if this fails."""
  _allow.get()(name)
  where, _, attribute = name.rpartition(":")
  file = Path(where).expanduser().resolve() if where.endswith(".py") else None
  if file and not file.is_file():
    raise Unavailable(option, "FILE.py:NAME of an existing file", name)
  try:
    module = load(file) if file else importlib.import_module(where)
  except Exception as error:  # the user's file may raise anything
    why = f"Importing {where} failed ({type(error).__name__}: {error})."
    raise Unavailable(option, "FILE.py:NAME or MODULE:NAME of a function", name, why) from error
  if attribute not in vars(module) and is_in_memory(name):
    raise Unavailable(option, "an object that was passed in this process", attribute, IN_MEMORY)
  if attribute not in vars(module):
    known = [
      key
      for key, value in vars(module).items()
      if not key.startswith("_")
      and (isinstance(value, Spec | Wrapper) or getattr(value, "__module__", "") == module.__name__)
    ]
    condition = f"a name defined in {where} ({', '.join(known) or 'none'})"
    raise Unavailable(option, condition, name, nearest(attribute, known))
  return vars(module)[attribute]


@functools.cache
def _described(kind: type[Any], function: Callable[..., Any], name: str) -> Any:
  """Wrap a factory in a Spec or Wrapper whose title is the first line of its docstring."""
  title = (inspect.getdoc(function) or name.rpartition(":")[2]).splitlines()[0]
  return Spec(function, title, name, UNDECLARED) if kind is Spec else Wrapper(function, title, name)
