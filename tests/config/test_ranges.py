"""Each numeric setting has a range, and the library and configs refuse values outside it."""

import inspect
import math
import typing
from dataclasses import fields
from typing import Annotated

import jax
import numpy as np
import optax
import pytest

from ddl.algorithms import COLLECTIVE, WRAPPERS
from ddl.algorithms.collective.diloco import diloco
from ddl.config import default_experiment
from ddl.config.catalog import REGISTRIES, factory, keyword_arguments
from ddl.config.comparison import Comparison
from ddl.config.experiment import Experiment, Network
from ddl.config.options import RunOptions
from ddl.config.sweep import Sweep
from ddl.ranges import ByWorkers, Range, check, check_all, checked, integers, range_of, settings_of

FREE = {"target"}  # a loss may be any number


def leaves(annotation):
  """Return the annotations of the numbers in an annotation."""
  if typing.get_origin(annotation) is tuple:
    return [leaf for element in typing.get_args(annotation) if element is not ... for leaf in leaves(element)]
  return [annotation] if range_of(annotation) else []


def explicit(annotation):
  """Return whether an annotation has a range, not only a type."""
  union = [member for member in typing.get_args(annotation) if member is not type(None)]
  return typing.get_origin(annotation) is Annotated or any(typing.get_origin(member) is Annotated for member in union)


def outside(valid):
  """Return values outside a range, including the nearest ones."""
  step = 1 if valid.integer else None
  below = valid.low if valid.open_low else valid.low - 1 if step else float(np.nextafter(valid.low, -math.inf))
  above = valid.high if valid.open_high else valid.high + 1 if step else float(np.nextafter(valid.high, math.inf))
  return [below, above, -1 if valid.low >= 0 else below, 1e300, math.nan, math.inf, -math.inf]


def inside(valid):
  """Return the smallest and largest value of a range."""
  low = float(np.nextafter(valid.low, math.inf)) if valid.open_low else valid.low
  return [low, float(np.nextafter(valid.high, -math.inf)) if valid.open_high else valid.high]


SETTINGS = {
  (kind, name, key): parameter.annotation
  for kind, registry in REGISTRIES.items()
  for name in registry
  for key, parameter in settings_of(factory(kind, name)).items()
  if key != "seed" and leaves(parameter.annotation)  # a seed is checked by its generator
}


def put(annotation, leaf, value):
  """Return the value as a setting with this annotation: in nested tuples, at the place of the leaf."""
  if annotation is leaf:
    return value
  elements = [element for element in typing.get_args(annotation) if element is not ...]
  return tuple(put(element, leaf, value) if leaf in leaves(element) else 1 for element in elements)


def in_config(kind, name, settings):
  """Read the settings of a section, as a config does."""
  return keyword_arguments(kind, settings | {"name": name}, 2)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_numeric_settings_have_ranges(kind):
  result = {place: annotation for place, annotation in SETTINGS.items() if place[0] == kind}
  assert result
  for (_, name, key), annotation in result.items():
    for leaf in leaves(annotation):
      assert explicit(leaf), (name, key)
      for value in outside(range_of(leaf)):
        with pytest.raises(ValueError, match=rf"{key} must be .*, got .*\.$") as refused:
          factory(kind, name)(**{key: put(annotation, leaf, value)})
        assert "\n" not in str(refused.value)
        if key != "workers":
          with pytest.raises(ValueError, match=rf"config\.{kind}\.{key} (must be|is) ") as refused:
            in_config(kind, name, {"name": name, key: put(annotation, leaf, value)})
          assert "\n" not in str(refused.value)
      for value in inside(range_of(leaf)):
        check_all(annotation, put(annotation, leaf, value), key)


def test_defaults_are_within_their_ranges():
  for (kind, name, key), annotation in SETTINGS.items():
    default = settings_of(factory(kind, name))[key].default
    for workers in (1, 2, 8, 100):
      if default is not inspect.Parameter.empty:
        value = default.value(workers) if isinstance(default, ByWorkers) else default
        check_all(annotation, value, f"{name}.{key}")


@pytest.mark.parametrize("kind", [Experiment, Network, RunOptions, Comparison, Sweep])
def test_numeric_fields_have_ranges(kind):
  annotations = typing.get_type_hints(kind, include_extras=True)
  for field in fields(kind):
    for leaf in leaves(annotations[field.name]):
      assert field.name in FREE or explicit(leaf), field.name


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"optimizer": {"name": "adam", "eps": -1.0}}, "config.optimizer.eps must be > 0, got -1."),
    ({"optimizer": {"name": "adam", "eps": 0.0}}, "config.optimizer.eps must be > 0, got 0."),
    ({"optimizer": {"learning_rate": math.nan}}, "config.optimizer.learning_rate must be > 0, got nan."),
    ({"algorithm": {"name": "slowmo", "slow_momentum": 2}}, "config.algorithm.slow_momentum must be in [0, 1), got 2."),
    ({"algorithm": {"name": "gosgd", "probability": 0.0}}, "config.algorithm.probability must be in (0, 1], got 0."),
    ({"times": {"straggler_factor": 0.5}}, "config.times.straggler_factor must be in [1, 1e+06], got 0.5."),
    ({"times": {"jitter": 1e10}}, "config.times.jitter must be in [0, 10], got 1e+10."),
    ({"times": {"seconds": 1e300}}, "config.times.seconds must be in (0, 1e+15], got 1e+300."),
    ({"network": {"message_seconds": math.inf}}, "config.network.message_seconds must be in [0, 1e+30], got inf."),
    ({"network": {"exchange_seconds": -1.0}}, "config.network.exchange_seconds must be >= 0, got -1."),
    ({"network": {"blocks": 0}}, "config.network.blocks must be an integer in [1, 1024], got 0."),
    ({"steps": 2**31}, "config.steps must be an integer in [1, 2147483647], got 2147483648."),
    ({"seed": -1}, "config.seed must be an integer >= 0, got -1."),
    (
      {"wrapper": {"name": "demo", "kept": 100, "chunk": 4}},
      "demo.kept with chunk 4 must be an integer in [1, 16], got 100.",
    ),
  ],
)
def test_messages(changes, words):
  with pytest.raises(ValueError) as refused:
    default_experiment(**changes)
  assert str(refused.value) == words


@pytest.mark.parametrize(
  "option, value",
  [
    ("join_timeout", math.nan), ("join_timeout", 0.9), ("peer_timeout", math.inf), ("peer_timeout", 2.9),
    ("worker_cpus", -1), ("devices", -1), ("max_restarts", -1), ("shards", True),
  ],
)  # fmt: skip
def test_run_options_out_of_range(option, value):
  with pytest.raises(ValueError, match=f"^{option} must be .*, got {value}"):
    RunOptions(**{option: value})


def test_factories_check_ranges():
  inner = optax.sgd(0.1)
  for make in (COLLECTIVE["diloco"].factory, diloco):
    with pytest.raises(ValueError, match=r"^diloco\.outer_learning_rate must be >= 0, got -1\.$"):
      make(inner, outer_learning_rate=-1)
    make(inner, period=2, outer_learning_rate=np.float32(0.7), outer_momentum=jax.numpy.float32(0.5))
  with pytest.raises(ValueError, match=r"^topk\.share must be in \(0, 1\], got nan\.$"):
    WRAPPERS["topk"].factory(diloco(inner, period=2, outer_learning_rate=0.7, outer_momentum=0.5), share=math.nan)


def test_traced_numbers_are_not_checked():
  @jax.jit
  def rate(x):
    check("rate", x, Range(0, 1))
    return x

  assert rate(2.0) == 2


def test_integer_ranges():
  values = {1: True, 2.5: False, np.int64(3): True, np.float32(3.5): False, "4": False, math.nan: False, 0: False}
  assert {value: value in integers(1) for value in values} == values and 2.0 in integers(1) and True not in integers(1)


def test_conditions_of_ranges():
  assert [str(valid) for valid in (Range(0, 1, open_low=True), Range(0, open_low=True), integers(1), Range())] == [
    "in (0, 1]", "> 0", "an integer >= 1", "a finite number"
  ]  # fmt: skip


def test_ranges_of_a_user_defined_factory(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(
    "from __future__ import annotations\nfrom typing import Annotated\nfrom ddl.models.mlp import mlp\n"
    "from ddl.ranges import Range, checked\n\n\n@checked\n"
    "def net(meta, *, width: Annotated[float, Range(0, 2)] = 1.0, depth: int = 1):\n  return mlp(meta, hidden=(4,))\n"
  )
  assert default_experiment(model={"name": f"{file}:net", "width": 2}).model.width == 2.0
  for key, value, words in [
    ("width", 3.0, "in [0, 2], got 3."),
    ("depth", 1.5, "an integer"),
    ("width", math.nan, "nan"),
  ]:
    with pytest.raises(ValueError) as refused:
      default_experiment(model={"name": f"{file}:net", key: value})
    assert words in str(refused.value) and f"config.model.{key}" in str(refused.value)


def test_tuples_are_required():
  @checked
  def net(*, hidden: tuple[Annotated[int, integers(1)], ...]):
    return hidden

  assert net(hidden=[3, 4]) == [3, 4]
  with pytest.raises(ValueError, match=r"^net\.hidden must be a tuple, got 3\.$"):
    net(hidden=3)
  with pytest.raises(ValueError, match=r"^net\.hidden must be an integer >= 1, got 0\.$"):
    net(hidden=(3, 0))


@pytest.mark.parametrize("key, value, condition", [("late", "yes", "True or False"), ("late", 1, "True or False"),
                                                   ("graph", 3, "a string")])  # fmt: skip
def test_bools_and_text_are_required(key, value, condition):
  @checked
  def net(*, late: bool = False, graph: str = "ring"):
    return late, graph

  assert net(late=np.bool_(True), graph="full") == (True, "full")
  with pytest.raises(ValueError, match=rf"^net\.{key} must be {condition}, got {value!r}\.$"):
    net(**{key: value})


UNRESOLVED = (
  "from __future__ import annotations\nfrom ddl.algorithms.collective.local_sgd import local_sgd\n\n\n"
  "def rule(inner, *, period: {period} = 2) -> {result}:\n  return local_sgd(inner, period=2)\n"
)


@pytest.mark.parametrize(
  "period, result, words", [("Perido", "int", "'period'"), ("int", "Algoritm", "the return value")]
)
def test_annotations_that_cannot_be_resolved(tmp_path, period, result, words):
  (tmp_path / "mine.py").write_text(UNRESOLVED.format(period=period, result=result))
  with pytest.raises(ValueError, match=f"rule: the annotation of {words} must be a type") as refused:
    default_experiment(algorithm={"name": f"{tmp_path}/mine.py:rule"})
  assert "\n" not in str(refused.value)
