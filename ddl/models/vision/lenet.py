"""LeNet: convolution, max pooling and relu, twice, and two dense layers (LeCun et al. 1998)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ddl.api import Model
from ddl.models.cpu import convolve
from ddl.models.flax_model import from_flax, require
from ddl.ranges import PositiveInt, checked
from ddl.sharding import columns, named


def pool(x: jax.Array) -> jax.Array:
  """Maximum over 2 x 2: [batch, h, w, c] -> [batch, h // 2, w // 2, c].

  Four strided slices, as the gradient of nn.max_pool (select-and-scatter) is slow on a CPU:
  a step of the whole network takes 1.3 times as long with it.
  """
  x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
  top = jnp.maximum(x[:, ::2, ::2], x[:, ::2, 1::2])
  return jnp.maximum(top, jnp.maximum(x[:, 1::2, ::2], x[:, 1::2, 1::2]))


class _LeNet(nn.Module):
  outputs: int
  channels: tuple[int, ...]
  kernel: int
  hidden: int

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    del train
    for channels in self.channels:
      x = nn.Conv(channels, (self.kernel, self.kernel), conv_general_dilated=convolve)(x)
      x = nn.relu(pool(x))  # relu and maximum commute; this way round relu has a quarter of the work
    x = named(x.reshape(x.shape[0], -1), "Dense_0/in")
    x = named(nn.relu(named(nn.Dense(self.hidden)(x), "Dense_0/out")), "Dense_1/in")
    return named(nn.Dense(self.outputs)(x), "Dense_1/out")


@checked
def lenet(
  meta: Mapping[str, Any],
  *,
  channels: tuple[PositiveInt, ...] = (16, 32),
  kernel: PositiveInt = 5,
  hidden: PositiveInt = 128,
) -> Model:
  """Per entry of channels: "same" convolution, 2x2 max pooling, relu; then dense layers of hidden and num_outputs.

  Raises:
    ValueError: if the data is not images, the images are too small for the poolings, or there are no channels.
  """
  if not channels:
    raise ValueError("lenet: channels is (); invalid: must have an entry for each convolution, such as (16, 32)")
  require("lenet", meta, image=True, side=2 ** len(channels))
  module = _LeNet(meta["num_outputs"], tuple(channels), kernel, hidden)
  rules = {"hybrid": columns(("Dense_0", "Dense_1"))}
  model = from_flax(module, meta, dense=True)  # in a scan 21 times faster than plain nn.Conv: see `convolve`
  return model._replace(rules=rules)
