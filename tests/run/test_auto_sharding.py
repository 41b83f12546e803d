"""`--sharding=auto`: minimal traffic by the formula and in XLA, and the same result as one device."""

import re

import jax
import numpy as np
import pytest
from helpers.members import BATCH, network, of_a_step, one_device, trained
from helpers.sessions import config

from ddl.engine.placement import gather
from ddl.perf.hybrid import volume
from ddl.perf.layers import Layer
from ddl.run.build import with_auto

WIDTHS = {"mlp": (12, 64, 64, 64, 8), "lenet": (32, 128, 8)}
NAMES = {"mlp": [f"Dense_{i}" for i in range(4)], "lenet": ["Dense_0", "Dense_1"]}


def auto(name, workers, members, batch=BATCH):
  return with_auto(network(name), config(workers=workers, batch=batch // workers), members)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers, members", [(1, 8), (2, 4), (4, 2)])
@pytest.mark.parametrize("batch", [8, 16, 64, 4096])
def test_each_layer_moves_the_fewest_bytes(name, workers, members, batch):
  rules, expected, nodes = auto(name, workers, members, batch).rules["auto"], [], workers * members
  sums = {}
  for groups in (1, 2, 4, 8):
    table = [Layer(*row) for row in zip(NAMES[name], WIDTHS[name][:-1], WIDTHS[name][1:], strict=True)]
    pairs = [(volume(layer, batch, nodes, groups).total, volume(layer, batch, nodes, nodes).total) for layer in table]
    sums[groups] = sum(map(min, pairs))
    if groups == workers:
      expected = [layer.name for layer, (inside, across) in zip(table, pairs, strict=True) if inside < across]
  assert list(rules.layers) == expected
  assert rules.splits_batch == (NAMES[name][0] not in expected or name == "lenet")
  least = min(sums.values())
  assert sums[nodes // int(re.findall(r"workers with (\d+) devices", rules.note)[0])] == least
  if batch == 4096:
    assert not expected and rules.note.startswith("all layers by examples")
  if batch == 8 and name == "mlp":
    assert expected


@pytest.mark.slow
@pytest.mark.parametrize("name, workers, members", [("mlp", 2, 2), ("mlp", 1, 8), ("lenet", 2, 2)])
def test_the_result_equals_that_of_one_device(x64, name, workers, members):
  model = auto(name, workers, members)
  _, carry = trained(name, workers, members, "auto", rules=model.rules)
  result = jax.tree.map(lambda x: x[0], gather(carry.params))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), result, one_device(name))


@pytest.mark.slow
@pytest.mark.parametrize("workers, members", [(1, 8), (2, 4), (4, 2)])
def test_xla_sends_at_most_15_percent_more_than_the_better_uniform_choice(workers, members):
  """The formula ignores biases, and small layers for which XLA gathers the weights instead."""
  model = auto("mlp", workers, members)
  rules = {"hybrid": model.rules["hybrid"], "auto": model.rules["auto"]}
  rules["examples"] = auto("mlp", workers, members, batch=2**20).rules["auto"]  # splits examples in all layers
  sent = {
    name: sum(collective.sent for collective in of_a_step("mlp", workers, members, name, rules=rules)) for name in rules
  }
  assert 0 < sent["auto"] <= 1.15 * min(sent["hybrid"], sent["examples"])


def test_a_network_without_hybrid_rules_is_unchanged():
  model = network("mlp")._replace(rules={})
  assert with_auto(model, config(workers=2, batch=8), 2) is model
