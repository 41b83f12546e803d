"""A comparison as a frozen value: an experiment per label on one budget of examples, the seeds and the target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ddl.ranges import Seed, check_fields
from experiments.config.comparisons.grid import expanded, values
from experiments.config.comparisons.variants import of_label, only, variants
from experiments.config.experiment import Experiment
from experiments.config.parts.factories import Config, named
from experiments.config.parts.part import jsonable
from experiments.grid_point import Place, comparable, quoted


@dataclass(frozen=True)
class Comparison:
  """`experiments`: by label, in the order of the report; the seed of each is replaced by `seeds` one by one."""

  experiments: Mapping[str, Experiment]
  title: str = ""
  seeds: tuple[Seed, ...] = (0, 1, 2)
  target: float = 0.95  # of the test metric
  expected: tuple[tuple[str, str], ...] = ()  # pairs of labels, the first sooner at the target, as a paper found
  clusters: tuple[str, ...] = ()  # that the seconds are predicted for
  tuned: str = ""  # tuned.json of the sweep that the settings are from
  grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values by key; {}: there is none
  places: Mapping[str, Place] = field(default_factory=dict)  # of the labels in the grid
  metric: str = ""  # see `config.compare.metric`

  def __post_init__(self) -> None:
    """Raises ValueError for invalid seeds or expectations, or algorithms that cannot be compared."""
    if not isinstance(self.expected, tuple) or not all(isinstance(p, tuple) and len(p) == 2 for p in self.expected):
      raise ValueError(
        f"config.compare.expected is {self.expected}; give pairs of labels, such as (('EASGD', 'local SGD'),)"
      )
    check_fields(self, "config.compare.")
    if len(set(self.seeds)) < len(self.seeds):
      raise ValueError(f"config.compare.seeds must be different, got {self.seeds}.")
    if not self.seeds:
      raise ValueError("config.compare.seeds is empty; give at least one, and three for an interval")
    for label, experiment in self.experiments.items():
      for part in ("model", "data"):
        if getattr(experiment, part) != getattr(self.first, part):
          raise ValueError(f"{quoted(label)} changes the {part}; a comparison is of algorithms on one {part}")
    if "steps" not in self.grid:
      self._check_budget()

  def _check_budget(self) -> None:
    """Raises ValueError where labels have another number of examples, which a grid rounds to whole steps."""
    step = {label: each.workers * each.batch for label, each in self.experiments.items()}
    budgets = {label: step[label] * each.steps for label, each in self.experiments.items()}
    rounding = max(step.values()) if self.grid else 0
    if max(budgets.values()) - min(budgets.values()) > rounding:
      told = ", ".join(f"{quoted(label)}: {budget}" for label, budget in budgets.items())
      raise ValueError(
        f"workers x batch x steps differ ({told} examples); a comparison has one budget of examples, or steps among "
        "the keys of config.compare.grid"
      )

  @property
  def first(self) -> Experiment:
    """The first label's: model and data are those of all."""
    return next(iter(self.experiments.values()))

  @classmethod
  def from_config(
    cls, config: Config, only_labels: Sequence[str] = (), tuned: str = "", clusters: Sequence[str] = ()
  ) -> "Comparison":
    """From `config.compare`. Raises as `variants`, `only` and `Experiment.from_config` do."""
    labels = variants(config, tuned)
    every = expanded(config, labels)
    configs = {label: each.config for label, each in every.items()}
    groups = {label: each.place.group for label, each in every.items()}
    chosen = only(configs, only_labels, groups)
    section = config.compare
    out = cls(
      {label: of_label(label, configs[label]) for label in chosen},
      section.title, section.seeds, section.target, section.expected, tuple(clusters), tuned,
      values(config), {label: every[label].place for label in chosen}, section.metric,
    )  # fmt: skip
    for label in [label for pair in out.expected for label in pair]:
      named("label in config.compare.expected", labels, label)
    return out

  def place(self, label: str) -> Place:
    """Of a label in the grid."""
    return self.places.get(label, Place(label, {}))

  @property
  def expected_labels(self) -> list[tuple[str, str]]:
    """`expected`, at each point of the grid."""
    found = []
    for sooner, later in self.expected:
      at = [[label for label in self.experiments if self.place(label).group == group] for group in (sooner, later)]
      found += [pair for pair in product(*at) if comparable(*map(self.place, pair))] if all(at) else [(sooner, later)]
    return found

  def to_json(self) -> dict[str, Any]:
    """As a reader of the report needs it: what all experiments have in common, and what each label sets."""
    flat = {label: _flat(each.to_json()) for label, each in self.experiments.items()}
    every = [set(map(repr, each.items())) for each in flat.values()]
    common = set.intersection(*every)
    own = {label: {k: v for k, v in each.items() if repr((k, v)) not in common} for label, each in flat.items()}
    shared = {k: v for k, v in _flat(self.first.to_json()).items() if repr((k, v)) in common}
    heads = {"title": self.title, "seeds": self.seeds, "metric": self.metric, "target": self.target}
    heads |= {"expected": self.expected}
    heads |= {"grid": self.grid} if self.grid else {}
    return jsonable({**heads, "common": shared, "algorithms": own})


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
  """{"model": {"name": "mlp"}} -> {"model.name": "mlp"}."""
  out = {}
  for key, value in values.items():
    out |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value}
  return out
