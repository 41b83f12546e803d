"""`python run.py list`: layer tables, and the keys of virtual time with their defaults and meanings."""

import pytest
from absl import flags

from ddl.config import base
from ddl.config.catalog import keywords
from ddl.config.experiment import Network, meanings
from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from ddl.perf import neural_networks
from experiments.command_line import cli


@pytest.fixture
def out(capsys):
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  assert cli.run("list", []) == 0
  return capsys.readouterr().out


def test_layer_tables(out):
  lines = out.split("--model of plan and scale: layer tables\n")[1].split("\n--cluster")[0].splitlines()
  assert [line.split()[0] for line in lines] == neural_networks.names()
  assert all(neural_networks.title(line.split()[0]) in line for line in lines)
  resnet = next(line for line in lines if line.split()[0] == "resnet50")
  assert "ResNet-50" in resnet and resnet.endswith(" 25,557,032 parameters")  # torchvision's


def test_keys_of_virtual_time(out):
  assert set(base().network) == set(meanings(Network))
  network = out.split("config.network\n")[1].splitlines()
  for key, meaning in meanings(Network).items():
    assert any(
      line.split()[:3] == [key, "=", str(getattr(Network, key))] and line.endswith(meaning) for line in network
    )
  for kind, registry in (("times", TIMES), ("barrier", BARRIERS)):
    part = out.split(f"config.{kind}.name\n")[1].split("\nconfig.")[0]
    for name, factory in registry.items():
      line, meaning = next(
        (a, b) for a, b in zip(part.splitlines(), part.splitlines()[1:], strict=False) if a.split()[0] == name
      )
      assert all(f"{key}: " in line for key in keywords(factory))
      assert str(factory.__doc__).startswith(meaning.strip())
  failures = [key for key in keywords(TIMES["constant"]) if key != "seconds"]
  shared = out.split("config.times.name\n")[1].split("config.barrier")[0].split("  slow: a multiplier")[1]
  assert all(key in shared or key == "slow" for key in failures)
