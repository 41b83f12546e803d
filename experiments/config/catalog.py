"""What a section's `name` can be: an entry of ddl's registries, or an object of the user's own by its address.

An address is `module:name`, for what Python can import, or `path/to/file.py:name`. A config file uses `own(function)`
instead, which finds the address.
"""

import copy
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import optax

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Algorithm, Data, Hyper, Model, ServerAlgorithm, Spec, Taxonomy, Wrapper
from ddl.data import DATA
from ddl.data.partition import PARTITIONS
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from experiments.config.factories import Config, keywords, named, section
from experiments.config.optimizers import OPTIMIZERS
from experiments.config.schedules import SCHEDULES

NO_WRAPPER = "none"
REGISTRIES: dict[str, Mapping[str, Any]] = {
  "algorithm": COLLECTIVE | SERVER,
  "wrapper": {NO_WRAPPER: None, **WRAPPERS},
  "model": MODELS,
  "data": DATA,
  "partition": PARTITIONS,
  "optimizer": OPTIMIZERS,
  "schedule": SCHEDULES,
  "times": TIMES,
  "barrier": BARRIERS,
}
MADE: dict[str, Any] = {  # by the factories of a kind, where it is one type
  "algorithm": (Algorithm, ServerAlgorithm),
  "wrapper": Algorithm,
  "model": Model,
  "data": Data,
  "partition": list,
  "optimizer": optax.GradientTransformation,
}
UNDECLARED = Taxonomy("data", *["not declared"] * 4)


def entry(kind: str, name: str) -> Any:
  """The registry's entry, or the user's object: of an algorithm a Spec, of a wrapper a Wrapper, else a factory.

  Raises:
    ValueError: for an unknown name, or an address where no such object can be had.
  """
  return _imported(kind, name) if is_address(name) else named(kind, REGISTRIES[kind], name)


def factory(kind: str, name: str) -> Any:
  """The function whose keyword-only arguments are the section's keys (of NO_WRAPPER None). Raises as `entry` does."""
  found = entry(kind, name)
  return found.factory if isinstance(found, Spec | Wrapper) else found


def make(kind: str, name: str, *arguments: Any, **settings: Any) -> Any:
  """What the factory makes of its arguments.

  Raises:
    ValueError: as `entry` does; and for a factory of one's own that fails, or returns something else than its kind.
  """
  made = factory(kind, name)
  if not is_address(name):
    return made(*arguments, **settings)
  try:
    found = made(*arguments, **settings)
  except Exception as error:  # the function is the user's, and so are its errors
    raise ValueError(f"config.{kind}.name is {name}: it fails ({type(error).__name__}: {error})") from error
  wanted = MADE.get(kind, object)
  if not isinstance(found, wanted):
    words = " or ".join(each.__name__ for each in (wanted if isinstance(wanted, tuple) else (wanted,)))
    raise ValueError(f"config.{kind}.name is {name}: invalid: must return a {words}, not {type(found).__name__}")
  if kind == "algorithm" and isinstance(found, ServerAlgorithm) != has_server(name):
    raise ValueError(f"config.algorithm.name is {name}: its function must be annotated: -> {type(found).__name__}")
  return found


def make_algorithm(name: str, inner: Any, workers: int, settings: Mapping[str, Any]) -> Any:
  """The algorithm of these hyper-parameters; `workers` is passed to a factory that takes it. Raises as `make` does."""
  return make("algorithm", name, inner, **settings, **for_workers("algorithm", name, workers))


def for_workers(kind: str, name: str, workers: int) -> dict[str, int]:
  """{"workers": workers} for a factory that takes them beside its settings, else {}."""
  return {"workers": workers} if "workers" in inspect.signature(factory(kind, name)).parameters else {}


def has_server(name: str) -> bool:
  """Whether an algorithm is a ServerAlgorithm: an own one's factory says so by the type that it returns."""
  if not is_address(name):
    return name in SERVER
  return get_type_hints(entry("algorithm", name).factory).get("return") is ServerAlgorithm


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
  scopes = [getattr(value, "__globals__", {}), sys._getframe(1).f_globals]  # a function's own file, or the caller's
  found = [(scope, name) for scope in scopes for name, each in list(scope.items()) if each is value]
  if not found:
    raise ValueError(f"{value!r}: invalid: must be defined at the top level of a file, so that it can be found again")
  scope, name = found[0]
  where, file = scope["__name__"], scope.get("__file__")  # a notebook has none
  importable = where in sys.modules and vars(sys.modules[where]) is scope and where not in _FILES
  if file and (where == "__main__" or not importable):
    where = Path(file).absolute()
  return {"name": f"{where}:{name}", **settings}


def absolute(name: str) -> str:
  """The address so that it holds in any working directory: a module of the working directory by its file's path."""
  where, _, attribute = name.rpartition(":")
  if not where.endswith(".py"):
    if (file := Path(f"{where}.py").absolute()).is_file() and where not in sys.modules:
      return f"{file}:{attribute}"
    return name
  return f"{Path(where).expanduser().absolute()}:{attribute}"


def with_own_keys(kind: str, chosen: Mapping[str, Any], default: Config) -> Config:
  """A section that names an object of one's own: the default section's keys and the object's, with what is chosen."""
  name = absolute(chosen["name"])
  made, out = factory(kind, name), copy.deepcopy(default)
  with out.unlocked(), out.ignore_type():
    for key in {*keywords(made)} & {*out}:
      del out[key]
    out.update(section(name, [made]))
    for key, value in chosen.items():
      if key != "name":
        out[key] = value
  return out


_FILES: dict[str, Path] = {}  # module -> file, of those that are imported by a path


def _imported(kind: str, name: str) -> Any:
  where, _, attribute = name.rpartition(":")
  try:
    module = _module_of(Path(where).absolute()) if where.endswith(".py") else importlib.import_module(where)
  except Exception as error:  # the file is the user's, and so are its errors
    why = f"{type(error).__name__}: {error}"
    raise ValueError(f"config.{kind}.name is {name}: importing {where} fails ({why})") from error
  found = getattr(module, attribute, None)
  if found is None:
    there = [key for key, each in vars(module).items() if callable(each) and not key.startswith("_")]
    near = difflib.get_close_matches(attribute, there, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ValueError(f"config.{kind}.name is {name}: {where} has no {attribute}{hint}")
  wanted = {"algorithm": Spec, "wrapper": Wrapper}.get(kind)
  if wanted and isinstance(found, wanted):
    return found
  if not callable(found) or isinstance(found, tuple | type):
    expected = f"a {wanted.__name__} or its factory" if wanted else "a function"
    raise ValueError(f"config.{kind}.name is {name}: invalid: must be {expected}, not {type(found).__name__}")
  return _described(wanted, found, name) if wanted else found


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


def _module_of(file: Path) -> ModuleType:
  """The module of a file, run once in a process; a script that is running is not run again."""
  if (script := getattr(sys.modules["__main__"], "__file__", None)) and Path(script).absolute() == file:
    return sys.modules["__main__"]
  name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
  if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _FILES[name] = module, file
    try:
      spec.loader.exec_module(module)
    except BaseException:
      del sys.modules[name]
      raise
  return sys.modules[name]
