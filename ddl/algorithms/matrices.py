"""The matrices whose updates Muon and Dion orthogonalize."""

import re
from typing import Any

import jax
import jax.numpy as jnp

from ddl.api import Tree

EMBEDDING = re.compile(r"embed|/(wte|wpe|tokens|positions?)/", re.IGNORECASE)
OUTPUT = re.compile(r"head|classifier|logits|/out(put)?s?/", re.IGNORECASE)


def hidden_matrices(params: Tree) -> Tree:
  """Return a tree of bools: True for a network's hidden weight matrices, False for all other arrays.

  `muon` and `dion` orthogonalize only the updates of these matrices [inputs, outputs], as do Keller Jordan's Muon,
  MuLoCo (arXiv 2505.23725) and Dion (arXiv 2504.05295). All other arrays get an element-wise optimizer such as AdamW:

  - arrays that do not have exactly two axes, such as biases, scales, positions [1, tokens, width] and kernels of
    convolutions, whose axes have a different order in each library (Dion's code rejects them too,
    Keller Jordan's Muon flattens and orthogonalizes them);
  - embeddings: arrays whose path contains "embed", or a component wte, wpe, tokens or position(s);
  - the output layer. It is looked up among the matrices at the outermost level of the tree that contains matrices: it
    consists of those whose path contains "head", "classifier" or "logits", or a component out(s) or output(s); without
    any, it is the last matrix in the natural order of the paths (Dense_10 follows Dense_9). If all matrices at this
    level are embeddings, as with an output layer tied to the embedding, no array counts as the output layer. If the
    model is linear, so that it has only one array with two or more axes, this matrix counts as hidden.
  """
  paths, structure = jax.tree_util.tree_flatten_with_path(params)
  arrays = {f"/{jax.tree_util.keystr(path, simple=True, separator='/')}/": x for path, x in paths}
  level = min((path.count("/") for path, x in arrays.items() if x.ndim == 2), default=0)
  hidden = {path for path, x in arrays.items() if x.ndim == 2 and not EMBEDDING.search(path)}
  last = sorted((path for path in hidden if path.count("/") == level), key=_natural)
  if sum(x.ndim > 1 for x in arrays.values()) > 1:
    hidden -= {path for path in last if OUTPUT.search(path)} or {*last[-1:]}
  return structure.unflatten([path in hidden for path in arrays])


def _natural(path: str) -> list[Any]:
  return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def orthonormal(p: jax.Array) -> jax.Array:
  """Return an orthonormal basis of the column space of p, by a QR factorization in at least 32 bits."""
  wide = p if p.dtype.itemsize > 2 else p.astype(jnp.float32)
  return jnp.linalg.qr(wide)[0].astype(p.dtype)
