"""The method that `virtual_grad=auto` chooses for the gradients of a device's workers."""

import pytest

from ddl.engine.execution import MANY_STEPS, choose_execution, choose_gradients
from ddl.engine.workers import make_workers
from ddl.models.mlp import mlp

META = {"shape": (64,), "num_outputs": 10, "task": "classification"}
SMALL, LARGE = (mlp(META, hidden=hidden) for hidden in ((128, 128), (192, 128)))  # 102 and 150 KiB


@pytest.mark.parametrize(
  "model, per_device, steps, expected",
  [
    (SMALL, 1, 400, "unroll"),
    (SMALL, 4, 400, "vmap"),
    (SMALL, 64, 10**6, "vmap"),
    (LARGE, 16, 1, "unroll"),
    (LARGE, 17, MANY_STEPS - 1, "map"),
    (LARGE, 17, MANY_STEPS, "unroll"),
    (SMALL._replace(dense=False), 64, 1, "unroll"),
  ],
)
def test_the_choice_follows_the_models_size_and_the_number_of_copies(model, per_device, steps, expected):
  workers = make_workers(2 * per_device, 2)
  choice = choose_gradients(workers, model, steps)
  assert choice.gradients == expected and choice.reason
  assert choose_execution(workers, model, 1000, steps).gradients == expected
