"""Checkpoints in the middle of a round: the bits of a resumed run equal those of an uninterrupted one."""

import jax
import numpy as np
import pytest
from helpers.runs import STEPS, feed, make

from ddl.engine.checkpoint import Checkpoints
from ddl.engine.execution import ExecutionConfig

HALF = (
  5  # steps before the checkpoint: in the middle of a round, of a pair of half batches and of a schedule of moments
)
NAMES = ("acco", "fednova", "edit", "fedadam", "mt_dao", "fedprox", "des_loc", "fedyogi", "fedadagrad")


def calls(trainer, carry, first):
  """Yield (step, carry) after each call of at most HALF steps."""
  plan = [call for call in trainer.plan(0, STEPS, HALF) if call.first >= first]
  for call, after, _ in trainer.run(carry, plan, feed, jax.random.key(1)):
    yield call.end, after


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(len(NAMES))
def test_a_checkpoint_within_a_round(x64, tmp_path, name):
  trainer, whole, checkpoints = make(name, 2, ExecutionConfig("vmap", "scan", HALF)), {}, Checkpoints(tmp_path)
  for step, carry in calls(trainer, trainer.start(jax.random.key(0)), 0):
    if step == HALF:
      checkpoints.save(HALF, trainer.saved(carry), {}, wait=True)
    whole[step] = jax.tree.map(np.asarray, trainer.saved(carry))
  again = trainer.restored(checkpoints.carry(HALF, trainer.saved(trainer.start(jax.random.key(9)))))
  checkpoints.close()
  for step, carry in calls(trainer, again, HALF):
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, trainer.saved(carry)), whole[step])
  assert step == STEPS
