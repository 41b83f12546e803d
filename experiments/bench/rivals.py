"""Hand-written training loops with which ddl is compared; they use JAX and optax, or PyTorch's distributed tools.

`plain`: one worker, one jitted step. `vmap` and `devices`: ddl's models with a loop for one fixed algorithm.
`torch`: DistributedDataParallel, or PyTorch's periodic model averager, over Gloo with one process per worker.
"""

# pyright: reportMissingImports=false
# PyTorch is optional
import contextlib
import itertools
import time
from functools import partial
from typing import Any

import numpy as np

from ddl.costs.step_cost import synthetic
from experiments.bench.workloads import Block, Workload

RIVALS = ("vmap", "devices", "torch")
PERIODS = {"local_sgd": 10, "sync_sgd": 1}  # algorithms that the rivals implement -> steps per exchange
CALL_STEPS = 60  # steps per compiled call


def plain_side(workload: Workload) -> Block:
  """Build a plain JAX and optax loop: one worker, one jitted step."""
  import jax
  import optax

  from ddl.models import MODELS

  data = synthetic(workload.model, workload.pixels)
  model = MODELS[workload.model](data.meta, **workload.sizes)
  tx = optax.sgd(0.01, momentum=0.9)
  params, extra = jax.jit(model.init)(jax.random.key(0))

  def step(params: Any, opt: Any, extra: Any, batch: Any, key: Any) -> Any:
    (loss, extra), grads = jax.value_and_grad(model.loss, has_aux=True)(params, extra, batch, key)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, extra, loss

  jitted = jax.jit(step, donate_argnums=(0, 1, 2))
  arrays = data.train.take(np.arange(data.train.size))
  starts = itertools.cycle(range(0, data.train.size, workload.batch))
  key = jax.random.key(1)
  state = [params, tx.init(params), extra]

  def block(steps: int) -> float:
    began = time.perf_counter()
    loss = None
    for start in itertools.islice(starts, steps):
      batch = {k: v[start : start + workload.batch] for k, v in arrays.items()}
      *state[:], loss = jitted(*state, batch, key)
    jax.block_until_ready(loss)
    return time.perf_counter() - began

  return block


def jax_side(workload: Workload, algorithm: str, layout: str) -> Block:
  """Build a loop over all workers with `vmap` on one device, or with `shard_map` and one device per worker."""
  import jax

  if layout == "devices":
    jax.config.update("jax_num_cpu_devices", workload.workers)
  import jax.numpy as jnp
  import optax
  from jax.sharding import AxisType, PartitionSpec

  from ddl.models import MODELS

  data, workers, period = synthetic(workload.model, workload.pixels), workload.workers, PERIODS[algorithm]
  model, tx = MODELS[workload.model](data.meta, **workload.sizes), optax.sgd(0.01, momentum=0.9)
  params, _ = model.init(jax.random.key(0))

  def step(carry: Any, batch: Any) -> Any:
    params, opt = carry
    loss, grads = jax.value_and_grad(lambda p: model.loss(p, {}, batch, jax.random.key(0))[0])(params)
    grads = jax.lax.pmean(grads, "worker") if period == 1 else grads
    updates, opt = tx.update(grads, opt, params)
    return (optax.apply_updates(params, updates), opt), loss

  def one_round(carry: Any, batches: Any) -> Any:
    (params, opt), loss = jax.lax.scan(step, carry, batches)
    return (jax.lax.pmean(params, "worker") if period > 1 else params, opt), loss

  def rounds(carry: Any, batches: Any) -> Any:
    return jax.lax.scan(one_round, carry, batches)

  def one_worker(*args: Any) -> Any:
    return jax.tree.map(lambda x: x[None], rounds(*jax.tree.map(lambda x: x[0], args)))

  if layout == "devices":
    mesh = jax.make_mesh((workers,), ("worker",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("worker")
    lifted = jax.shard_map(one_worker, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
  else:
    lifted = jax.vmap(rounds, axis_name="worker")
  call = jax.jit(lifted, donate_argnums=0)
  carry = jax.tree.map(lambda x: jnp.stack([x] * workers), (params, tx.init(params)))
  arrays = data.train.take(np.arange(data.train.size))
  shape = (workers, CALL_STEPS // period, period, workload.batch)
  first = 0  # index of the next call's first example

  def block(steps: int) -> float:
    nonlocal carry, first
    calls = max(steps // CALL_STEPS, 1)
    began = time.perf_counter()
    losses = None
    for _ in range(calls):
      indices = np.arange(first, first + np.prod(shape))
      batches = {k: v.take(indices, axis=0, mode="wrap").reshape(*shape, *v.shape[1:]) for k, v in arrays.items()}
      jax.block_until_ready(losses)
      carry, losses = call(carry, batches)
      first += len(indices)
    jax.block_until_ready(carry)
    return (time.perf_counter() - began) * steps / (calls * CALL_STEPS)

  return block


def torch_side(workload: Workload, algorithm: str) -> Block:
  """Build a PyTorch loop with one process per worker.

  This process is rank 0; it starts the others and broadcasts the number of steps to them.
  """
  import torch.multiprocessing as multiprocessing

  context = multiprocessing.get_context("spawn")
  for rank in range(1, workload.workers):
    context.Process(target=_torch_rank, args=(rank, workload, algorithm), daemon=True).start()
  return _torch_rank(0, workload, algorithm)


def _torch_rank(rank: int, workload: Workload, algorithm: str) -> Any:
  import torch
  import torch.distributed as dist
  from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
  from torch.nn.parallel import DistributedDataParallel

  torch.set_num_threads(1)  # one core per worker; more threads were slower
  dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29531", rank=rank, world_size=workload.workers)
  torch.manual_seed(0)
  period = PERIODS[algorithm]
  model = _torch_model(workload)
  net = DistributedDataParallel(model) if period == 1 else model
  averager = PeriodicModelAverager(period=period, warmup_steps=0) if period > 1 else None
  optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
  data = synthetic(workload.model, workload.pixels)
  arrays = {k: torch.from_numpy(v) for k, v in data.train.take(np.arange(data.train.size)).items()}
  x, y = arrays["x"], arrays["y"].long()
  if x.ndim == 4:
    x = x.reshape(len(x), 1, *x.shape[1:3])
  entropy, first = torch.nn.CrossEntropyLoss(), rank * workload.batch

  def train(steps: int) -> None:
    nonlocal first
    for _ in range(steps):
      rows = slice(first, first + workload.batch)
      first = (first + workload.workers * workload.batch) % (len(x) - workload.batch)
      optimizer.zero_grad()
      entropy(net(x[rows]).flatten(0, -2), y[rows].flatten()).backward()
      optimizer.step()
      if averager:
        averager.average_parameters(model.parameters())
    dist.barrier()

  def block(steps: int) -> float:
    dist.broadcast(torch.tensor([steps]), 0)
    began = time.perf_counter()
    train(steps)
    return time.perf_counter() - began

  if rank == 0:
    return block
  steps = torch.zeros(1, dtype=torch.long)
  with contextlib.suppress(RuntimeError):  # rank 0 has exited
    while True:
      dist.broadcast(steps, 0)
      train(int(steps))


def _torch_model(workload: Workload) -> Any:
  """Build a PyTorch model with the same layers as ddl's model of the workload."""
  import torch
  from torch import nn

  sizes: dict[str, Any] = dict(workload.sizes)
  if workload.model == "mlp":
    widths = (784, *sizes["hidden"])
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], 10))
  if workload.model == "lenet":
    (first, second), kernel, hidden = sizes["channels"], sizes["kernel"], sizes["hidden"]
    convolve = partial(nn.Conv2d, kernel_size=kernel, padding="same")
    features = (convolve(1, first), nn.ReLU(), nn.MaxPool2d(2), convolve(first, second), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(7 * 7 * second, hidden), nn.ReLU(), nn.Linear(hidden, 10))
  width, heads = sizes["width"], sizes["heads"]

  class Transformer(nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.embed, self.head = nn.Embedding(64, width), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64))
      self.positions = nn.Parameter(torch.zeros(64, width))
      block = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, nn.GELU(approximate="tanh"), batch_first=True, norm_first=True
      )
      self.blocks = nn.TransformerEncoder(block, sizes["layers"], enable_nested_tensor=False)
      self.register_buffer("past", nn.Transformer.generate_square_subsequent_mask(64), persistent=False)

    def forward(self, x: Any) -> Any:
      return self.head(self.blocks(self.embed(x) + self.positions, mask=self.past, is_causal=True))

  return Transformer()
