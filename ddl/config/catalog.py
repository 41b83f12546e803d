"""The registries of factories, such as optimizers and models, that config sections refer to by name.

A section contains `name` and the keyword arguments of all factories in its registry; None means the default of the
named factory. Setting a key that this factory does not take is an error, so that every key that is set has an effect.

A `name` is a key of ddl's registries or the import path of a user-defined function, see `ddl.config.user_code`.
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
from ml_collections import ConfigDict, config_dict

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Algorithm, Data, Model, ServerAlgorithm, Spec, Wrapper
from ddl.config import user_code
from ddl.config.optimizers import OPTIMIZERS
from ddl.config.schedules import PERIOD_SCHEDULES, SCHEDULES
from ddl.config.user_code import absolute, is_address, is_in_memory
from ddl.data import DATA
from ddl.data.sampling import PARTITIONS
from ddl.errors import OptionError, nearest
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.names import quoted, short_name
from ddl.ranges import ByWorkers, OuterRate, Period, check_all, is_static, plain, resolved, settings_of

Factory = Callable[..., Any]
Config = Any  # an ml_collections.ConfigDict; type checkers do not know its attributes

NO_WRAPPER = "none"


def no_wrapper(algorithm: Algorithm) -> Algorithm:
  """Return the algorithm unchanged."""
  return algorithm


REGISTRIES: dict[str, Mapping[str, Any]] = {
  "algorithm": COLLECTIVE | SERVER,
  "wrapper": {NO_WRAPPER: no_wrapper, **WRAPPERS},
  "model": MODELS,
  "data": DATA,
  "partition": PARTITIONS,
  "optimizer": OPTIMIZERS,
  "schedule": SCHEDULES,
  "outer_schedule": SCHEDULES,
  "period_schedule": PERIOD_SCHEDULES,
  "times": TIMES,
  "barrier": BARRIERS,
}
RETURNED: dict[str, tuple[type, ...]] = {  # section -> types that its factories may return
  "algorithm": (Algorithm, ServerAlgorithm),
  "wrapper": (Algorithm,),
  "model": (Model,),
  "data": (Data,),
  "partition": (list,),
  "optimizer": (optax.GradientTransformation,),
}
TYPES = {int: "an integer (int)", float: "a number (float)", str: "a string (str)", bool: "True or False (bool)"}
SHOWN = 5  # maximum number of factories that an error lists for a setting
NAMES = 25  # maximum number of names that an error about an unknown name lists
FREE = ("config.compare.algorithms", "config.sweep.space")  # sections with user-defined keys


def named(option: str, registry: Mapping[str, Any], name: str, user_defined: Sequence[str] = ()) -> Any:
  """Look up a name in a registry. Raises OptionError for an unknown name, with the nearest name and a list of names.

  option: the setting that contains the name, such as "config.model.name"; user_defined: import paths to list too.
  """
  if name in registry:
    return registry[name]
  aliases = {alias.lower(): path for path in user_defined for alias in (path.rpartition(":")[2], short_name(path))}
  near = [aliases[alias] for alias in difflib.get_close_matches(str(name).lower(), aliases, n=1, cutoff=0.7)]
  advice = f"Did you mean '{near[0]}'?" if near else nearest(str(name), registry)
  if not advice and str(name).endswith(".py"):
    advice = f"For a function in this file, use {name}:NAME."
  known = [*map(quoted, [*user_defined, *registry])]
  more = f" and {len(known) - NAMES} more (see `python run.py list`)" if len(known) > NAMES else ""
  raise OptionError(option, f"one of {', '.join(known[:NAMES])}{more}", f"'{name}'", advice)


def entry(kind: str, name: str, user_defined: Sequence[str] = ()) -> Any:
  """Look up a name in section `kind`; return a Spec for an algorithm, a Wrapper for a wrapper, else the factory.

  Raises OptionError for an unknown name, or an import path that does not lead to such an object.
  """
  if is_address(name):
    return user_code.find(kind, name)
  return named(f"config.{kind}.name", REGISTRIES[kind], name, user_defined)


def factory(kind: str, name: str) -> Any:
  """Return the factory `name` of section `kind`; its keyword-only arguments are keys of the section."""
  registered = entry(kind, name)
  return registered.factory if isinstance(registered, Spec | Wrapper) else registered


def keywords(factory: Factory) -> dict[str, inspect.Parameter]:
  """Return a factory's keyword-only arguments, except workers and seed. Raises OptionError for invalid annotations."""
  parameters = {key: parameter for key, parameter in settings_of(factory).items() if key not in ("workers", "seed")}
  return {key: parameter.replace(annotation=plain(parameter.annotation)) for key, parameter in parameters.items()}


def takes(kind: str, name: str, key: str) -> bool:
  """Return whether factory `name` of section `kind` takes a key."""
  has_rate = (kind, key) == ("optimizer", "learning_rate") and not is_in_memory(name)
  return has_rate or key in keywords(factory(kind, name))


def traceable(kind: str, name: str, key: str, value: Any) -> bool:
  """Return whether JAX can trace a setting, so that one compiled program serves all its nonzero values.

  Return False for 0 or None and for settings of a user-defined factory.
  """
  if is_address(name) or not value:
    return False
  if (kind, key) == ("optimizer", "learning_rate"):
    return True
  return not is_static(settings_of(factory(kind, name))[key].annotation)


def outer_rate(name: str) -> str:
  """Return the key of an algorithm's outer learning rate, the setting annotated with `OuterRate`; "" for none."""
  settings = settings_of(factory("algorithm", name))
  return next((key for key, parameter in settings.items() if parameter.annotation == OuterRate), "")


def has_varying_period(name: str) -> bool:
  """Return whether an algorithm's period may be a function of the round: whether its annotation is `Period`."""
  parameter = settings_of(factory("algorithm", name)).get("period")
  return parameter is not None and parameter.annotation == Period


def section(name: str, factories: Iterable[Factory]) -> Config:
  """Return a config section with `name` and the keyword arguments of all factories as typed keys without values."""
  types: dict[str, set[type]] = {}
  for function in factories:
    for key, parameter in keywords(function).items():
      origin = getattr(parameter.annotation, "__origin__", parameter.annotation)
      types.setdefault(key, set()).add(origin if origin in (*TYPES, tuple) else object)
  out: Config = ConfigDict({"name": name})
  for key in sorted(types):
    out[key] = config_dict.placeholder(types[key].pop() if len(types[key]) == 1 else object)
  return out


def with_keys(kind: str, values: Mapping[str, Any], default: Config) -> Config:
  """Return a copy of section `default` with these values; for a user-defined function, add keys for its arguments."""
  name, out = values["name"], copy.deepcopy(default)
  with out.unlocked(), out.ignore_type():
    if is_address(name):
      name = absolute(name)
      user_defined = factory(kind, name)
      for key in {*keywords(user_defined)} & {*out}:
        del out[key]
      out.update(section(name, [user_defined]))
    out.update(values)
    out["name"] = name
    if is_in_memory(name) and "learning_rate" in out:  # an optax optimizer contains its own
      del out["learning_rate"]
  return out


def as_type(value: Any, annotation: Any, option: str) -> Any:
  """Convert a value to the type of a key: integral floats to int, numbers to float, lists and scalars to tuples.

  Raises OptionError if it cannot be converted, or is an integer beyond int64.
  """
  wrong = _wrong_type(value, annotation)
  if wrong:
    raise OptionError(option, wrong, repr(value))
  if getattr(annotation, "__origin__", annotation) is tuple:
    element = getattr(annotation, "__args__", (object,))[0]
    return tuple(as_type(item, element, option) for item in (value if isinstance(value, tuple | list) else (value,)))
  return annotation(value) if annotation in (int, float) else value


def _wrong_type(value: Any, annotation: Any) -> str:
  """Describe the expected type; return "" if the value can be converted to it."""
  if getattr(annotation, "__origin__", annotation) is tuple:
    element = getattr(annotation, "__args__", (object,))[0]
    wrong = [_wrong_type(item, element) for item in (value if isinstance(value, tuple | list) else (value,))]
    return next((f"a tuple of items, each {text}" for text in wrong if text), "")
  number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
  if annotation is int and number and math.isfinite(value) and value == int(value):
    return "" if abs(value) < 2**63 else "a 64-bit integer (int)"
  fits = number if annotation is float else annotation in (str, bool) and isinstance(value, annotation)
  return "" if fits else TYPES.get(annotation, "")


def check_keys(config: Any, default: Config, where: str = "config") -> None:
  """Convert values to the types of `default`, in place.

  Raises OptionError for unknown or missing keys, or for values of the wrong type.
  """
  if not isinstance(config, ConfigDict):
    raise OptionError(where, "a section (as in ddl.config.base())", repr(config))
  for key in [*default, *config]:
    if key not in config:
      raise OptionError(f"{where}.{key}", "present in the config", advice="Start from ddl.config.base().")
    if where not in FREE and key not in default:
      raise unknown_key(key, where, "", default)
  for key in default:
    path, value = f"{where}.{key}", config[key]
    if isinstance(default[key], ConfigDict):
      check_keys(value, default[key], path)
    elif value is not None or default[key] is not None:
      value = as_type(value, default.get_type(key), path)
      if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise OptionError(path, "text that can be encoded in UTF-8", ascii(value))
      if repr(value) != repr(config[key]):  # ignore_type is slow
        with config.ignore_type():
          config[key] = value


def unknown_key(key: str, where: str, kind: str, section: Config, name: str | None = None) -> OptionError:
  """Return the error for a key that a section does not have. name: the factory that replaces the section's, if any."""
  name, known = str(name or section.get("name")), [*section]
  with contextlib.suppress(ValueError):  # a wrong name is reported elsewhere
    known = [other for other in section if kind not in REGISTRIES or other == "name" or takes(kind, name, other)]
  with_name = f" with {short_name(name)}" if len(known) < len(section) else ""
  condition = f"one of the keys of {where}{with_name}: {', '.join(map(quoted, known)) or 'none'}"
  return OptionError(f"{where}.{key}", condition, advice=nearest(key, known, 0.6) or nearest(key, section, 0.6))


def keyword_arguments(kind: str, section: Mapping[str, Any], workers: int = 1) -> dict[str, Any]:
  """Return all keyword arguments of a section's factory: settings and defaults, which may depend on `workers`.

  Raises OptionError for a key that the factory does not take, a wrong type, a value out of range, or a missing value.
  """
  function = factory(kind, section["name"])
  parameters, ranges = keywords(function), settings_of(function)
  out = {key: value for key, value in section.items() if key != "name" and value is not None}
  what = f"{kind} '{section['name']}'"
  for key, value in out.items():
    option = f"config.{kind}.{key}"
    if key not in parameters:
      taken = f"takes {', '.join(parameters)}" if parameters else "takes no settings"
      readers = [name for name in REGISTRIES[kind] if takes(kind, name, key)][:SHOWN]
      advice = f"It is a setting of {', '.join(readers)}." if readers else ""
      raise OptionError(option, f"unset (None) with {what} (which {taken})", repr(value), advice)
    if wrong := _wrong_type(value, parameters[key].annotation):
      default = parameters[key].default
      advice = "" if default is inspect.Parameter.empty else f"Set it to None for its default, {default!r}."
      raise OptionError(option, f"{wrong} with {what}", repr(value), advice)
    out[key] = as_type(value, parameters[key].annotation, option)
    check_all(ranges[key].annotation, out[key], option)
  for key, parameter in parameters.items():
    default = parameter.default
    if key not in out and default is parameter.empty:
      raise OptionError(f"config.{kind}.{key}", f"set for '{short_name(section['name'])}', which has no default for it")
    out.setdefault(key, default.value(workers) if isinstance(default, ByWorkers) else default)
  return out


def make(kind: str, name: str, /, *arguments: Any, **settings: Any) -> Any:
  """Call factory `name` of section `kind` with these arguments and return its result.

  Raises OptionError as `entry` does, and if a user-defined factory fails or returns a wrong type.
  """
  function = factory(kind, name)
  if not is_address(name):
    return function(*arguments, **settings)
  option, types = f"config.{kind}.name", RETURNED.get(kind, (object,))
  try:
    with user_code.importable(name):
      value = function(*arguments, **settings)
  except Exception as error:  # the user's function may raise anything
    advice = f"It raised {type(error).__name__}: {error}"
    raise OptionError(option, "a function that runs without an exception", name, advice) from error
  if not isinstance(value, types):
    expected = " or ".join(expected_type.__name__ for expected_type in types)
    raise OptionError(option, f"a function that returns {expected}", f"{name}, which returned {type(value).__name__}")
  if kind == "algorithm" and isinstance(value, ServerAlgorithm) != has_server(name):
    raise OptionError(option, f"a function with the return annotation {type(value).__name__}", name)
  return value


def make_algorithm(name: str, inner: Any, workers: int, settings: Mapping[str, Any]) -> Any:
  """Build an algorithm with these settings, passing `workers` if its factory takes it. Raises as `make` does."""
  return make("algorithm", name, inner, **settings, **for_workers("algorithm", name, workers))


def for_workers(kind: str, name: str, workers: int) -> dict[str, int]:
  """Return {"workers": workers} if the factory has that argument, else {}."""
  return {"workers": workers} if "workers" in inspect.signature(factory(kind, name)).parameters else {}


def has_server(name: str) -> bool:
  """Return whether an algorithm is a `ServerAlgorithm`; user-defined factories declare it as their return type."""
  if not is_address(name):
    return name in SERVER
  function = factory("algorithm", name)
  return resolved(function, "return", inspect.signature(function).return_annotation) is ServerAlgorithm
