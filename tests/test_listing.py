"""`python run.py list` shows each key of virtual time, with its default and its meaning, from where it is declared."""

from absl import flags

from ddl.events.barriers import BARRIERS
from ddl.events.times import TIMES
from experiments import cli
from experiments.config import NETWORK, base
from experiments.parts import keywords


def test_keys_of_virtual_time(capsys):
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  assert cli.run("list", []) == 0
  out = capsys.readouterr().out
  assert set(base().network) == set(NETWORK)
  network = out.split("config.network\n")[1].splitlines()
  for key, (default, meaning) in NETWORK.items():
    assert any(line.split()[:3] == [key, "=", str(default)] and line.endswith(meaning) for line in network)
  for kind, registry in (("times", TIMES), ("barrier", BARRIERS)):
    part = out.split(f"config.{kind}.name\n")[1].split("\nconfig.")[0]
    for name, factory in registry.items():
      line, meaning = next(
        (a, b) for a, b in zip(part.splitlines(), part.splitlines()[1:], strict=False) if a.split()[0] == name
      )
      assert all(f"{key}: " in line for key in keywords(factory))
      assert str(factory.__doc__).startswith(meaning.strip())
  trouble = [key for key in keywords(TIMES["constant"]) if key != "seconds"]
  shared = out.split("config.times.name\n")[1].split("config.barrier")[0].split("  slow: a multiplier")[1]
  assert all(key in shared or key == "slow" for key in trouble)
