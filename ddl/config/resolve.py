"""Resolve the config of `ddl.train` and similar functions: load a file and apply the changes passed as arguments."""

import contextlib
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ddl.api import Spec, Wrapper
from ddl.config import in_memory
from ddl.config.base import DEFAULTS, absolute, base, load, renamed, switched, with_user_keys
from ddl.config.catalog import REGISTRIES, Config, check_keys
from ddl.config.comparison import apply
from ddl.config.user_code import custom
from ddl.errors import OptionError
from ddl.names import short_name

SCHEDULE = ('{"name": "cosine", "floor": 0.1}', "(rate, steps, *, settings) -> optax.Schedule ")
EXAMPLES = {  # section: (example value, signature of a function in its place)
  "algorithm": ('{"name": "local_sgd", "period": 10}', "(optimizer, *, settings) -> ddl.Algorithm "),
  "wrapper": ('{"name": "topk", "share": 0.01}', "(algorithm, *, settings) -> ddl.Algorithm "),
  "model": ('{"name": "mlp", "hidden": (64, 64)}', "(meta, *, settings) -> ddl.Model "),
  "data": ('{"name": "npz", "path": "FILE.npz"}', "(*, settings) -> ddl.Data "),
  "optimizer": ('{"name": "adam", "learning_rate": 0.01}', "(rate, *, settings) -> optax.GradientTransformation "),
  "schedule": SCHEDULE,
  "outer_schedule": SCHEDULE,
  "period_schedule": ('{"name": "qsr", "alpha": 0.01}', "(period, rate, steps, *, settings) -> function of the round "),
  "partition": ('{"name": "iid"}', "(size, labels, *, workers, seed) -> list[np.ndarray] "),
}


def resolve(config: str | Path | ConfigDict | None, changes: Mapping[str, Any]) -> Config:
  """Return the config with the changes applied. Raises OptionError for an unknown key or a value of the wrong type."""
  if config is not None and not isinstance(config, str | Path | ConfigDict):
    raise OptionError("config", "a config file or a ConfigDict from ddl.config.base()", repr(config))
  out: Config = load(Path(config)) if isinstance(config, str | Path) else copy.deepcopy(config) or base()
  sections = {kind: _section(kind, value) for kind, value in changes.items()}
  names = {kind: str(section["name"]) for kind, section in sections.items() if kind in REGISTRIES and "name" in section}
  out, _ = switched(out, names)
  for kind in ("compare", "sweep"):
    if not isinstance(sections.get(kind, {}), Mapping):
      raise OptionError(kind, f"a dictionary of settings of config.{kind}", repr(sections[kind]))
  compare, sweep = dict(sections.get("compare", {})), dict(sections.get("sweep", {}))
  if "algorithms" in compare:
    labels = _labels(compare.pop("algorithms"))
    with out.compare.unlocked():
      out.compare.algorithms = ConfigDict(labels)
  for section in (compare, sweep):
    if type(seeds := section.get("seeds")) is int:
      if seeds < 1:
        raise OptionError("seeds", "a positive number of seeds or a sequence of seeds", seeds)
      section["seeds"] = tuple(range(seeds))
  if isinstance(grid := compare.get("grid"), Mapping):
    compare["grid"] = tuple(grid.items())
  if isinstance(space := sweep.get("space"), Mapping):
    del sweep["space"]
    with out.sweep.unlocked():
      out.sweep.space = ConfigDict({label: dict(v) if isinstance(v, Mapping) else v for label, v in space.items()})
  sections |= {"compare": compare, "sweep": sweep}
  out = renamed(with_user_keys(out), sections)
  apply(out, base(), sections, "config")
  check_keys(out, with_user_keys(base(), out))
  return absolute(out)


def _labels(algorithms: Any) -> dict[str, Any]:
  """Convert a list of algorithms, or {label: algorithm or sections}, to {label: {section: changes}}."""
  if isinstance(algorithms, list | tuple):
    sections = [_section("algorithm", algorithm) for algorithm in algorithms]
    names = [short_name(str(section.get("name", "no name"))) for section in sections]
    if len({*names} - {"no name"}) < len(names):
      condition = "a list of distinct names or a dictionary from labels to algorithms"
      raise OptionError("algorithms", condition, ", ".join(names))
    algorithms = dict(zip(names, sections, strict=True))
  if not isinstance(algorithms, Mapping | ConfigDict):
    condition = 'a list of names or a dictionary (for example, {"DaSGD": {"name": "dasgd", "period": 8}})'
    raise OptionError("algorithms", condition, repr(algorithms))
  return {label: _label(algorithm) for label, algorithm in algorithms.items()}


def _label(changes: Any) -> dict[str, Any]:
  """Convert a compared algorithm, given as a name or as changes by section, to {section: changes}."""
  if not isinstance(changes, Mapping | ConfigDict) or "name" in changes:
    changes = {"algorithm": changes}
  return {kind: _section(kind, value) for kind, value in changes.items()}


def _section(kind: str, value: Any) -> Any:
  """Convert the argument for a section to a dictionary, such as {"name": ...} for a name, a function or an object.

  Return a setting outside sections, such as workers=4, unchanged. Raises OptionError for an invalid argument.
  """
  if section := in_memory.section(kind, value):
    return section
  if kind not in REGISTRIES or isinstance(value, Mapping | ConfigDict):
    return value
  if isinstance(value, str):
    return {"name": value}
  if isinstance(value, Spec | Wrapper) or (callable(value) and not isinstance(value, tuple)):
    with contextlib.suppress(OptionError):  # not at the top level of a file
      return custom(value)
  example, signature = EXAMPLES.get(kind, (f'{{"name": "{DEFAULTS[kind]}"}}', ""))
  condition = f"a name, a dictionary (for example, {example}) or a function {signature}at the top level of a file"
  got = getattr(value, "__qualname__", type(value).__name__)
  advice = "Wrap a module with ddl.from_flax(module, meta)." if kind == "model" else ""
  raise OptionError(kind, condition, got, advice)
