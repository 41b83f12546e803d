"""Objects of the user's own by their addresses: `module:name`, or `path/to/file.py:name`; `own` finds an object's."""

import contextlib
import difflib
import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ddl.api import Hyper, Spec, Taxonomy, Wrapper
from experiments.config.parts import modules

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
  made = getattr(value, "factory", value)  # of a Spec or a Wrapper
  scopes = [
    getattr(inspect.unwrap(made) if callable(made) else made, "__globals__", {}),
    sys._getframe(1).f_globals,
  ]  # a function's own file, or the caller's
  found = [(scope, name) for scope in scopes for name, each in list(scope.items()) if each is value]
  if not found:
    raise ValueError(f"{value!r}; invalid: must be defined at the top level of a file, so that it can be found again")
  name = modules.address(*found[0])
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
    return modules.address(vars(importlib.import_module(where)), attribute)
  except Exception:  # `entry` says what is wrong with it
    return name


def found(kind: str, name: str) -> Any:
  """What an address leads to: of an algorithm a Spec, of a wrapper a Wrapper, else a function. Raises Unavailable."""
  _allow.get()(name)
  where, _, attribute = name.rpartition(":")
  file = Path(where).expanduser().resolve() if where.endswith(".py") else None
  try:
    module = modules.module_of(file) if file else importlib.import_module(where)
  except modules.Missing as error:
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
    module = modules.module_of(Path(where).expanduser().resolve()) if where.endswith(".py") else None
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
  return modules.beside(Path(where).expanduser().resolve()) if where.endswith(".py") else contextlib.nullcontext()


@functools.cache
def _described(kind: type[Any], made: Callable[..., Any], name: str) -> Any:
  """A Spec or Wrapper of a bare factory: its signature's defaults, and the first line of its docstring."""
  parameters = inspect.signature(made).parameters
  hyper = {
    key: Hyper(key, None if p.default is p.empty else p.default, "of this function")
    for key, p in parameters.items()
    if p.kind is p.KEYWORD_ONLY and key != "workers"
  }
  title = (inspect.getdoc(made) or name.rpartition(":")[2]).splitlines()[0]
  return Spec(made, title, name, UNDECLARED, hyper) if kind is Spec else Wrapper(made, title, name, hyper)
