"""Run collective algorithms in two processes and compare with NumPy. Arguments: algorithms, by default all."""

import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

import jax

from ddl import hosts


def main() -> None:
  """Run one of the two processes."""
  jax.config.update("jax_num_cpu_devices", 2)
  jax.config.update("jax_enable_x64", True)
  jax.config.update("jax_disable_most_optimizations", True)
  hosts.join(60, 30)
  from helpers.runs import HYPER, equals_twin, make, record

  from ddl.algorithms import COLLECTIVE
  from ddl.engine.execution import ExecutionConfig

  for name in sys.argv[1:] or COLLECTIVE:
    trainer = make(name, 4, ExecutionConfig("vmap", "scan", 5))
    assert len(trainer.workers.local) == 4 and jax.process_count() == 2
    equals_twin(trainer, record(trainer), name, "momentum", **HYPER.get(name, {}))
    if hosts.is_main():
      print(f"{name} equals its reference", flush=True)


if __name__ == "__main__":
  sys.exit(main() if hosts.processes() > 1 else hosts.launch(2, hosts.command_line()))
