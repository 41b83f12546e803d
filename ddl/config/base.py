"""The config that every experiment starts from: all keys, which a config file and `--config.key=value` edit."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import ml_collections
from ml_collections import ConfigDict, config_dict

from ddl.config.experiment import Experiment
from ddl.config.parts import Network
from ddl.config.registry import NO_WRAPPER, REGISTRIES, Config, as_type, factory, keywords, section, takes, with_keys
from ddl.config.user_code import is_address
from ddl.names import short_name

SECTIONS = (*REGISTRIES, "network", "compare", "sweep")
DEFAULTS = {  # name of each section
  "algorithm": "sync_sgd",
  "wrapper": NO_WRAPPER,  # compresses messages
  "model": "mlp",
  "data": "digits",
  "partition": "iid",
  "optimizer": "sgd",
  "schedule": "constant",
  "times": "lognormal",  # of steps, in virtual time
  "barrier": "asp",  # of server algorithms
}


class Pairs(config_dict.FieldReference):
  """A field that takes {key: value} and holds it as ((key, value), ...): a ConfigDict has no keys with dots."""

  def set(self, value: Any, type_safe: bool = True) -> None:
    """Sets the value, checked for its type."""
    super().set(tuple(value.items()) if isinstance(value, Mapping) else value, type_safe)


def base() -> Config:
  """All keys of an experiment with their defaults; a config file sets what differs. Unset keys are None."""
  config: Config = ml_collections.ConfigDict()
  for kind, name in DEFAULTS.items():
    config[kind] = section(name, [made for each in REGISTRIES[kind] if (made := factory(kind, each))])
  config.optimizer.learning_rate = 0.1
  config.network = ml_collections.ConfigDict(
    {f.name: config_dict.placeholder(float) if f.default is None else f.default for f in fields(Network)}
  )
  config.workers = 8  # p
  config.batch = 32  # examples per worker and step
  config.microbatches = 1  # parts of a batch, whose gradients are taken one after the other and averaged
  config.precision = "float32"  # or "bfloat16": of a loss and its gradient; parameters and messages stay float32
  config.steps = 200  # of each worker; with a server or peers on average
  config.eval_every = 50  # steps between lines of metrics
  config.noise_batches = 0  # batches for the gradient noise scale in each of them, e.g. 16; 0: it is left out
  config.elastic = False  # True: without a worker that dies the others go on, and it joins them again; collectives only
  config.seed = 0  # initial parameters, order of the examples, dropout
  config.compare = ml_collections.ConfigDict(
    {
      "title": "",
      "seeds": (0, 1, 2),
      "metric": "",  # "accuracy", "loss" or "perplexity"; "": the accuracy where there is one, else the loss
      "target": 0.95,  # of the test metric: at least this accuracy, at most this loss or perplexity
      "expected": (),  # pairs of labels, the first of which a paper found to be sooner at the target
      "algorithms": ml_collections.ConfigDict(),  # label -> what differs, e.g. {"algorithm": {"name": "dasgd"}}
      "grid": Pairs((), tuple),  # key -> values that all labels are run with, e.g. {"algorithm.period": (1, 4)}
    }
  )
  config.sweep = ml_collections.ConfigDict(
    {
      "trials": 9,  # per algorithm
      "seeds": (),  # of each trial, whose score is their mean; (): config.seed
      "sampler": "halton",  # evenly spread; or "tpe", which goes by the results of earlier trials
      "pruning": False,  # stop trials that are not among the better third after 1/9 or 1/3 of the steps
      "validation": 0.2,  # share of the training examples, where the data section sets none
      "learning_rate": (0.01, 1.0),  # bounds of a logarithmic scale
      "space": ml_collections.ConfigDict(),  # label -> {key of config.algorithm: (low, high) or [choices]}
    }
  )
  return config.lock()


def with_own(config: Config, sections: Any = None) -> Config:
  """The config with the keys of the objects of one's own that its sections name, or that `sections` are to name.

  Raises:
    ValueError: for an address where no such object can be had.
  """
  for kind in REGISTRIES:
    there, chosen = config.get(kind), config.get(kind) if sections is None else sections.get(kind)
    if isinstance(chosen, Mapping | ConfigDict) and is_address(chosen.get("name")):
      given = {key: value for key, value in there.items() if value is not None} | {"name": chosen["name"]}
      config[kind] = with_keys(kind, given, base()[kind])
  return config


def switched(config: Config, names: Mapping[str, str]) -> tuple[Config, str]:
  """A copy with other names of sections, without the keys that were set for the former name and are not read now.

  These go from the section itself, from labels of the comparison that do not name another entry, and from what a sweep
  tunes and a grid varies for such labels.

  Args:
    names: section -> name.

  Returns:
    The copy, and one line that says what was dropped ("" for nothing). Raises ValueError for an unknown name.
  """
  out, notes = renamed(config, {kind: {"name": name} for kind, name in names.items()}), []
  labels = out.compare.algorithms
  for kind, name in names.items():
    old = config[kind].name
    if name == old:
      continue
    kept = partial(_kept, kind, old, name)

    def all_kept(key: str, values: Any, kept: Callable[[str, Any], bool] = kept) -> bool:
      return all(kept(key, value) for value in (values if isinstance(values, tuple | list) else [values]))

    gone = [key for key, value in config[kind].items() if value is not None and out[kind].get(key) is None]
    followers = [label for label in labels if "name" not in _section(labels[label], kind)]
    places = {label: _section(labels[label], kind) for label in followers}
    spaces = {label: out.sweep.space.get(label, {}) for label in followers}
    tuned = {label: _section(each, kind) if kind != "algorithm" else each for label, each in spaces.items()}
    for label, keys, read in [(*each, kept) for each in places.items()] + [(*each, all_kept) for each in tuned.items()]:
      dropped = [key for key in keys if _took(kind, old, key) and not read(key, keys[key])]
      for key in dropped:
        del keys[key]
      gone += [f"{key} of '{label}'" for key in dropped]
    if len(followers) == len(labels):
      grid = [pair for pair in out.compare.grid if not _of(pair, kind) or all_kept(_of(pair, kind), pair[1])]
      gone += [f"{pair[0]} of the grid" for pair in out.compare.grid if pair not in grid]
      out.compare.grid = tuple(grid)
    if gone:
      words = ", ".join(dict.fromkeys(gone))
      notes.append(f"config.{kind}.name={short_name(name)} drops what was set for {short_name(old)}: {words}")
  return out, "; ".join(notes)


def _section(changes: Any, kind: str) -> Any:
  """The keys that changes set in a section; a name alone stands for {"name": name}."""
  section = changes.get(kind, {}) if isinstance(changes, Mapping | ConfigDict) else {}
  return section if isinstance(section, Mapping | ConfigDict) else {"name": section}


def _of(pair: Any, kind: str) -> str:
  """The key of a section that a pair of the grid varies, "" for another section's."""
  section, _, key = str(pair[0]).partition(".") if isinstance(pair, tuple) and pair else ("", "", "")
  return key if section == kind and key != "name" else ""


def _kept(kind: str, old: str, new: str, key: str, value: Any) -> bool:
  """Whether a value that was set for the old name is one for the new name too.

  Sizes of a model are not where their types differ, such as hidden layers (64, 64) and 128.
  """
  if not takes(kind, new, key):
    return False
  if value is None or (kind, key) == ("optimizer", "learning_rate") or not _took(kind, old, key):
    return True
  before, after = (keywords(factory(kind, name))[key].annotation for name in (old, new))
  with contextlib.suppress(TypeError):
    as_type(value, after)
    return kind != "model" or before == after
  return False


def _took(kind: str, old: str, key: str) -> bool:
  """Whether a section of the former name reads a key; False for a name that does not exist."""
  with contextlib.suppress(ValueError):
    return takes(kind, old, key)
  return False


def renamed(config: Config, changes: Any) -> Config:
  """A copy in which a section that the changes give another name has kept the keys that this one reads alike.

  Keys that neither the old name nor the new one reads stay: they are mistakes. Raises as `with_own` does.
  """
  out = copy.deepcopy(config)
  for kind in REGISTRIES:
    chosen = changes.get(kind) if isinstance(changes, Mapping) else None
    chosen = chosen if isinstance(chosen, Mapping | ConfigDict) else {}
    name, old = chosen.get("name"), config[kind].name
    if isinstance(name, str) and (name != old or is_address(name)):
      kept = {key: None for key in chosen if key in config[kind]}  # that it may unset
      for key, value in config[kind].items():
        if value is not None and (name == old or _kept(kind, old, name, key, value) or not _took(kind, old, key)):
          kept[key] = value
      out[kind] = with_keys(kind, kept | {"name": name}, base()[kind])
  return out


def default_experiment(**changes: Any) -> Experiment:
  """The experiment of `base()` with other values: workers=4, model={"name": "lenet"}, ..."""
  values = base().to_dict()
  for key, change in changes.items():
    values[key] = values[key] | change if isinstance(values[key], dict) else change
  experiment = Experiment.from_json(values)
  experiment.make_algorithm()
  return experiment
