"""What a section's `name` can be: an entry of ddl's registries, or an object of the user's own by its address.

An address is `module:name`, for what Python can import, or `path/to/file.py:name`. A config file uses `own(function)`
instead, which finds the address.
"""

import contextlib
import copy
import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import optax

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Algorithm, Data, Model, ServerAlgorithm, Spec, Wrapper
from ddl.data import DATA
from ddl.data.partition import PARTITIONS
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.ranges import resolved
from experiments.config.parts import own_objects
from experiments.config.parts.factories import Config, keywords, named, section
from experiments.config.parts.optimizers import OPTIMIZERS
from experiments.config.parts.own_objects import absolute, is_address
from experiments.config.parts.schedules import SCHEDULES
from experiments.grid_point import quoted
from experiments.short_name import short_name

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
    return own_objects.found(kind, name)
  return named(kind, REGISTRIES[kind], name, own_objects.known(kind))


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
    with own_objects.beside(name):
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
