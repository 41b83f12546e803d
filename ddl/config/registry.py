"""The names that a section of a config can have: each is a factory, whose keyword arguments are the section's keys.

A section holds `name` and every keyword that some factory of its kind takes; None means the factory's own default.
A key that is set but that the chosen factory does not take is an error: nothing in a config goes unread.

A `name` is an entry of ddl's registries or the address of a user-defined object. An address is `module:name`, for what
Python can import, or `path/to/file.py:name`. A config file uses `own(function)` instead, which finds the address.
"""

import contextlib
import copy
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optax
from ml_collections import config_dict

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Algorithm, Data, Model, ServerAlgorithm, Spec, Wrapper
from ddl.config import user_code
from ddl.config.optimizers import OPTIMIZERS
from ddl.config.schedules import SCHEDULES
from ddl.config.user_code import absolute, is_address
from ddl.data import DATA
from ddl.data.sampling import PARTITIONS
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.names import quoted, short_name
from ddl.ranges import ByWorkers, check_all, plain, resolved, settings_of

Factory = Callable[..., Any]
Config = Any  # an ml_collections.ConfigDict, whose attributes no type checker knows


def keywords(factory: Factory) -> dict[str, inspect.Parameter]:
  """The keyword-only arguments of a factory that a config may set. ValueError for an annotation without a meaning."""
  taken = {key: each for key, each in settings_of(factory).items() if key not in ("workers", "seed")}
  return {key: each.replace(annotation=plain(each.annotation)) for key, each in taken.items()}


def section(name: str, factories: Iterable[Factory]) -> Config:
  """A config section with `name` and all keywords of the factories, unset but typed."""
  types: dict[str, set[type]] = {}
  for factory in factories:
    for key, parameter in keywords(factory).items():
      types.setdefault(key, set()).add(_plain_type(parameter.annotation))
  out: Config = config_dict.ConfigDict({"name": name})
  for key in sorted(types):
    out[key] = config_dict.placeholder(types[key].pop() if len(types[key]) == 1 else object)
  return out


def named(kind: str, registry: Mapping[str, Any], name: str, own: Sequence[str] = ()) -> Any:
  """The registry's entry. own: addresses of objects of the user's own, which may be meant too.

  Raises:
    ValueError: for an unknown name, with the nearest one and all that exist.
  """
  if name in registry:
    return registry[name]
  words = {short.lower(): each for each in own for short in (each.rpartition(":")[2], short_name(each))}
  near = [words[each] for each in difflib.get_close_matches(str(name).lower(), words, n=1, cutoff=0.7)]
  near += difflib.get_close_matches(str(name), registry, n=1, cutoff=0.5)
  hint = f"did you mean '{near[0]}'? " if near else ""
  known = ", ".join(map(quoted, [*own, *registry])) or "none"
  raise ValueError(f"no {kind} named '{name}': {hint}known are {known}")


def settings(kind: str, factory: Factory, chosen: Mapping[str, Any]) -> dict[str, Any]:
  """The keyword arguments that a section sets for its factory, and the factory's defaults for the others.

  Raises:
    ValueError: for a key that is set but that the factory does not take, a value of another type than it takes, or a
      key without a default that is not set.
  """
  given = _given(kind, factory, chosen)
  for key, parameter in keywords(factory).items():
    if key not in given:
      if parameter.default is parameter.empty:
        name = short_name(chosen["name"])
        raise ValueError(f"config.{kind}.{key} must be set for '{name}': it has no default")
      given[key] = parameter.default
  return given


def hyper(spec: Spec | Wrapper, chosen: Mapping[str, Any], workers: int, kind: str = "algorithm") -> dict[str, Any]:
  """The hyper-parameters of an algorithm, or of a wrapper; defaults that depend on the number of workers as values.

  Raises:
    ValueError: as `settings` does.
  """
  values = settings(kind, spec.factory, chosen)
  return {key: value.value(workers) if isinstance(value, ByWorkers) else value for key, value in values.items()}


def _given(kind: str, factory: Factory, chosen: Mapping[str, Any]) -> dict[str, Any]:
  """The keys that a section sets, checked against the factory's."""
  taken, ranges = keywords(factory), settings_of(factory)
  given = {k: v for k, v in chosen.items() if k != "name" and v is not None}
  for key in given:
    if key not in taken:
      known = f"it takes {', '.join(taken)}" if taken else "it takes no settings"
      raise ValueError(
        f"config.{kind}.{key} is set, but {kind} '{chosen['name']}' does not read it: {known}; "
        f"--config.{kind}.{key}=None unsets it"
      )
  found = {}
  for key, value in given.items():
    where = f"config.{kind}.{key}"
    try:
      found[key] = as_type(value, taken[key].annotation)
    except TypeError as error:
      default = taken[key].default
      example = f"={','.join(map(str, default)) or '1,2'}" if isinstance(default, tuple) else f"={default}"
      example = "=VALUE" if default in (taken[key].empty, "") or isinstance(default, ByWorkers) else example
      raise ValueError(
        f"{where} is {value!r}, but {kind} '{chosen['name']}' takes {error}: "
        f"--{where}{example} sets it, --{where}=None unsets it"
      ) from error
    check_all(ranges[key].annotation, found[key], where)
  return found


def as_type(value: Any, annotation: Any) -> Any:
  """The value as the type of a key: whole floats pass for int, numbers for float, lists and single values for tuples.

  Raises:
    TypeError: for a value of another type, or an integer beyond int64; its text names the expected type.
  """
  if getattr(annotation, "__origin__", annotation) is tuple:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    element = getattr(annotation, "__args__", (object,))[0]
    try:
      return tuple(as_type(v, element) for v in values)
    except TypeError as error:
      raise TypeError(f"a tuple, each {error}") from error
  number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
  if annotation is int and number and math.isfinite(value) and value == int(value):
    if abs(value) >= 2**63:
      raise TypeError("an integer (int) of 64 bits")
    return int(value)
  if annotation is float and number:
    return float(value)
  if annotation in WORDS and not (annotation in (str, bool) and isinstance(value, annotation)):
    raise TypeError(WORDS[annotation])
  return value


WORDS = {int: "an integer (int)", float: "a number (float)", str: "a text (str)", bool: "True or False (bool)"}


FREE = ("config.compare.algorithms", "config.sweep.space")  # sections whose keys are the user's


def check_keys(config: Any, default: Config, where: str = "config") -> None:
  """ValueError where a config has other keys than `default`, `base()`, or values of other types; 8.0 becomes 8."""
  if not isinstance(config, config_dict.ConfigDict):
    raise ValueError(f"{where} is {config!r}; invalid: must be a section, as ddl.config.base() has it")
  for key in [*default, *config]:
    if key not in config:
      raise ValueError(f"{where}.{key} is missing: start from ddl.config.base()")
    if where not in FREE:
      named(f"key in {where}", default, key)
  for key in default:
    path, value = f"{where}.{key}", config[key]
    if isinstance(default[key], config_dict.ConfigDict):
      check_keys(value, default[key], path)
    elif value is not None or default[key] is not None:
      try:
        value = as_type(value, default.get_type(key))
      except TypeError as error:
        raise ValueError(f"{path} is {value!r}; invalid: must be {error}") from error
      if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"{path} is {value!a}; invalid: must be text that UTF-8 can encode")
      with config.ignore_type():
        config[key] = value


def _plain_type(annotation: Any) -> type:
  origin = getattr(annotation, "__origin__", annotation)
  return origin if origin in (int, float, str, bool, tuple) else object


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


def entry(kind: str, name: str) -> Any:
  """The registry's entry, or the user's object: of an algorithm a Spec, of a wrapper a Wrapper, else a factory.

  Raises:
    ValueError: for an unknown name, or an address where no such object can be had.
  """
  if is_address(name):
    return user_code.found(kind, name)
  return named(kind, REGISTRIES[kind], name, user_code.known(kind))


def factory(kind: str, name: str) -> Any:
  """The function whose keyword-only arguments are the section's keys (of NO_WRAPPER None). Raises as `entry` does."""
  found = entry(kind, name)
  return found.factory if isinstance(found, Spec | Wrapper) else found


def takes(kind: str, name: str, key: str) -> bool:
  """Whether a section of this name reads the key. Raises as `entry` does."""
  found = factory(kind, name)
  return (kind, key) == ("optimizer", "learning_rate") or (found is not None and key in keywords(found))


def unknown_key(key: str, where: str, kind: str, section: Config, name: str | None = None) -> str:
  """What is said of a key that a section does not have. name: that the section is about to have, if not its own."""
  name, known = str(name or section.get("name")), [*section]
  with contextlib.suppress(ValueError):  # of a wrong name, which something else refuses
    known = [each for each in section if kind not in REGISTRIES or each == "name" or takes(kind, name, each)]
  near = difflib.get_close_matches(key, known, n=1) or difflib.get_close_matches(key, section, n=1)
  hint = f"did you mean '{near[0]}'? " if near else ""
  of = f" with {short_name(name)}" if len(known) < len(section) else ""
  return f"no key '{key}' in {where}: {hint}known{of} are {', '.join(map(quoted, known)) or 'none'}"


def make(kind: str, name: str, /, *arguments: Any, **settings: Any) -> Any:
  """What the factory makes of its arguments.

  Raises:
    ValueError: as `entry` does; and for a factory of one's own that fails, or returns something else than its kind.
  """
  made = factory(kind, name)
  if not is_address(name):
    return made(*arguments, **settings)
  try:
    with user_code.beside(name):
      found = made(*arguments, **settings)
  except Exception as error:  # the function is the user's, and so are its errors
    raise ValueError(f"config.{kind}.name is {name}: it fails ({type(error).__name__}: {error})") from error
  wanted = MADE.get(kind, object)
  if not isinstance(found, wanted):
    words = " or ".join(each.__name__ for each in (wanted if isinstance(wanted, tuple) else (wanted,)))
    raise ValueError(f"config.{kind}.name is {name}; invalid: must return a {words}, not {type(found).__name__}")
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
  made = entry("algorithm", name).factory
  kind = resolved(made, "return", inspect.signature(made).return_annotation)
  return kind is ServerAlgorithm


def with_keys(kind: str, chosen: Mapping[str, Any], default: Config) -> Config:
  """The default section with what is chosen; where it names an object of one's own, with that one's keys too."""
  name, out = chosen["name"], copy.deepcopy(default)
  with out.unlocked(), out.ignore_type():
    if is_address(name):
      name = absolute(name)
      made = factory(kind, name)
      for key in {*keywords(made)} & {*out}:
        del out[key]
      out.update(section(name, [made]))
    out["name"] = name
    for key, value in chosen.items():
      if key != "name":
        out[key] = value
  return out
