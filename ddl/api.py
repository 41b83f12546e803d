"""The interfaces of algorithms, models and data sets."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddl.sharding import Rules

AxisName = Hashable  # one named axis or a tuple of them, slowest first: ("worker", "virtual")
Tree = Any  # a pytree of arrays
Batch = Mapping[str, Any]  # {"x": [batch, ...], "y": [batch, ...]}


class Exchange(NamedTuple):
  """A recurring message among the workers: how it is sent and received, and at which steps.

  Let t be the number of finished steps. A message is sent (`launch`) at t = offset + period, offset + 2 period, ...,
  and arrives (`merge`) `delay` steps later; with `delay` = 0 it arrives at once. Delayed messages that arrive at t are
  merged before a message is sent at t. The first launch must be at t >= 0, or at t >= 1 if `delay` is 0. With an offset
  of -period, the first launch precedes the first step.

  The steps between a launch and its merge do not depend on the message, so communication can overlap them. If the delay
  exceeds the period, several messages are in flight and arrive in the order of their launches.

  A round consists of the steps up to the next launch. If the period is a function of the round k = 0, 1, ..., messages
  are sent at t = offset + period(0), offset + period(0) + period(1), ... With a period of `FirstSteps(n)`, messages are
  sent at t = offset + 1, ..., offset + n only, for algorithms whose messages differ in the first steps.
  """

  launch: Callable[[Any, Tree, Tree], tuple[Tree, Tree]]  # (group, state, params) -> (message, state): communicates
  merge: Callable[[Any, Tree, Tree, Tree], tuple[Tree, Tree]]  # (group, message, state, params) -> (params, state)
  period: int | Callable[[int], int] = 1  # steps between launches (tau)
  delay: int = 0  # steps in flight (d)
  offset: int = 0  # steps


NEVER = 2**30  # the period of a round that does not end, in steps


class FirstSteps(NamedTuple):
  """The period of an exchange that sends only `count` messages: 1 in the first `count` rounds, then NEVER."""

  count: int  # >= 1

  def __call__(self, round_: Any) -> Any:
    """Return the period of round `round_`, which is an int or a traced integer."""
    if isinstance(round_, int):
      return 1 if round_ < self.count else NEVER
    return jnp.where(round_ < self.count, jnp.int32(1), jnp.int32(NEVER))


MOST_EXCHANGES = 64  # per algorithm, because each exchange takes time to trace and to compile


class Algorithm(NamedTuple):
  """One worker's side of a collective algorithm: pure functions that communicate through a `ddl.group.Group`.

  Each step runs `local`, then all due merges of delayed messages, then all due exchanges without a delay, then all due
  launches of delayed messages. Within each of these three kinds, the order is that of `exchanges`. All workers pass the
  same key to `init`.
  """

  init: Callable[[Any, Tree, Any], Tree]  # (group, params, key) -> state
  local: Callable[[Any, Tree, Tree, Tree], tuple[Tree, Tree]]  # (group, grads, state, params) -> (params, state)
  exchanges: tuple[Exchange, ...]
  evaluate: Callable[[Any, Tree, Tree], Tree]  # (group, state, params) -> the consensus params, equal on all workers
  regroup: Callable[[Tree], Tree] | None = None  # state -> state for a changed set of workers; element-wise. It resets
  # what is valid only for one set, such as terms that add up to zero over the workers. None: the state stays valid
  takes_step: Callable[[Any, Any], Any] | None = None  # (worker, step) -> whether the worker takes this step or only
  # waits; for virtual time. Both are numbers or NumPy arrays. None: all workers take all steps


def descend(inner: optax.GradientTransformation, grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
  """Take a step of the inner optimizer, x <- x + u with u = inner(g), and return (params, inner state)."""
  updates, state = inner.update(grads, state, params)
  return optax.apply_updates(params, updates), state


def select(condition: Any, new: Tree, old: Tree) -> Tree:
  """Return a tree with the values of `new` where the boolean `condition` is true, and those of `old` elsewhere."""
  return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def inner_step(inner: optax.GradientTransformation) -> Callable[[Any, Tree, Any, Tree], tuple[Tree, Any]]:
  """Return a `local` function, x_i <- x_i + inner(g_i), for algorithms with the optimizer's state in `state.inner`."""

  def local(group: Any, grads: Tree, state: Any, params: Tree) -> tuple[Tree, Any]:
    params, inner_state = descend(inner, grads, state.inner, params)
    return params, state._replace(inner=inner_state)

  return local


# Type of an optax state -> its field that counts steps for a schedule or a condition, and for nothing else.
STEP_COUNTS = {
  optax.AddNoiseState: "count",
  optax.ConditionallyMaskState: "step",
  optax.ConditionallyTransformState: "step",
  optax.contrib.ScaleByAdemamixState: "count_m2",
}
# States of wrappers that skip some updates of the inner optimizer, so that its schedules count updates, not steps.
IRREGULAR = (optax.MultiStepsState, optax.ConditionallyMaskState, optax.ConditionallyTransformState)


def step_count(node: Any) -> str | None:
  """Return the name of the field in which a part of an optax state counts steps for a schedule, or None.

  The field is `count` if it is the only one or if there is a field `hyperparams`; otherwise it is that in STEP_COUNTS.
  """
  fields = getattr(node, "_fields", ())
  scheduled = fields == ("count",) or {"count", "hyperparams"} <= {*fields}
  name = "count" if scheduled else STEP_COUNTS.get(type(node))
  return name if name and jnp.issubdtype(jnp.result_type(getattr(node, name)), jnp.integer) else None


def at_step(state: Tree, step: Any) -> Tree:
  """Return an optax state with the step counts of its schedules (see `step_count`) set to `step`.

  Other counts, such as Adam's, do not change. Nor do the inner states of wrappers whose state has a type in IRREGULAR.
  """

  def with_step(node: Any) -> Any:
    fields = getattr(node, "_fields", None)
    if fields is None:  # an array
      return node
    if not isinstance(node, IRREGULAR):
      node = type(node)(*(at_step(value, step) for value in node))
    name = step_count(node)
    return node._replace(**{name: jnp.full_like(getattr(node, name), step)}) if name else node

  return jax.tree.map(with_step, state, is_leaf=lambda node: hasattr(node, "_fields"))


class Visit(NamedTuple):
  """A worker's visit to the server, in which the server serves one request. All fields are [] int32."""

  worker: Any
  peer: Any  # the other worker of a peer-to-peer exchange, -1 for none; always -1 if `Arrivals.peers` is "none"
  step: Any = 0  # for schedules: index (from 0) of the middle one of the steps that the message covers


class Arrivals(NamedTuple):
  """The order of the workers' visits to the server and the choice of peers, for an event schedule (`ddl.events`)."""

  order: str = "first_come"  # one of ORDERS
  peers: str = "none"  # one of PEERS
  peer_probability: float = 1.0  # probability that a visit has a peer
  blocks: int = 0  # number of blocks that a lock-free visit splits the center into; 0: the server uses a lock

  @property
  def round_robin(self) -> bool:
    """Return whether workers visit in rank order, each starting its steps after the previous worker's visit."""
    return self.order == "round_robin"


ORDERS = ("first_come", "round_robin")  # first come, first served; by rank
PEERS = ("none", "uniform", "bipartite")  # no peer; any other worker; a neighbor in a ring of an even number of workers


class LockFree(NamedTuple):
  """An element-wise update rule for a center in shared memory without a lock.

  A visit reads the center and adds to it block by block, concurrently with other visits.
  """

  increment: Callable[[Tree, Tree], Tree]  # (message, center as read) -> increment of the center
  reply: Callable[[Tree, Tree], Tree]  # (message, center as read) -> reply
  reads_first: bool  # whether each block is read before it is updated; False: after


class ServerAlgorithm(NamedTuple):
  """An algorithm whose workers exchange messages with a server, one at a time: pure functions without collectives.

  A worker round is `period` steps and one request, which begins a visit to the server. With `delay` = 0 a worker sends
  the request after the last step of the round, waits for the reply, and merges it before the first step of the next
  round. With `delay` = d > 0 it sends the request before the first step and merges the reply after d steps, which can
  hide the communication. Visits may happen in any order. In peer-to-peer algorithms the "server" holds the models of
  all workers, and a visit changes two of them.

  Schedules count a worker's steps, even if the server runs the optimizer. A server with an optimizer sets the step of
  its schedules to that of the visit: `descend(inner, message, at_step(server.inner, visit.step), server.center)`.
  `visit.step` is the middle step of the worker's period; if the period is even, it alternates between the two middle
  steps. For a linear schedule, the rates at these steps average to the mean rate over all steps.

  With `periods`, a worker's number of steps per round depends on its speed: `periods` receives the workers' mean step
  times relative to that of the fastest worker (1 or more), and returns for each worker an integer from max(1, `delay`)
  to `period`. The step times are those of the config (`times`), even if the run is in real time. A run ends when its
  rounds together have as many steps as those of a run with equal speeds.
  """

  init: Callable[[Tree], tuple[Tree, Tree, Tree]]  # params -> (worker state, server, initial reply)
  local: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]  # (grads, state, params) -> (params, state)
  request: Callable[[Tree, Tree], Tree]  # (state, params) -> message
  serve: Callable[[Tree, Tree, Visit], tuple[Tree, Tree]]  # (server, message, visit) -> (server, reply)
  merge: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]  # (reply, state, params) -> (params, state)
  evaluate: Callable[[Tree], Tree]  # server -> params to test
  period: int = 1  # steps (tau)
  delay: int = 0  # steps (d)
  read: Callable[[Tree, Tree, Visit], tuple[Tree, Tree]] | None = None  # (server, old reply, visit) -> (server, reply):
  # computes a new reply for a worker after a barrier or a failure; None: the old reply stays valid
  lock_free: LockFree | None = None  # if set, the server's state consists only of the center's parameters
  arrivals: Arrivals = Arrivals()
  periods: Callable[[Sequence[float]], Sequence[int]] | None = None  # relative step times [workers] -> steps per round
  # of each worker; None: `period` for all workers
  averages: bool = True  # whether `serve` can apply the mean of several workers' messages as one message; a backup or
  # cutoff barrier requires this
  relayed: float = 0.0  # models that several servers send to each other per visit, on average; only their bytes count


class Taxonomy(NamedTuple):
  """An algorithm's position in the taxonomy of Langer et al. (arXiv 2007.03970): four axes and the payload."""

  parallelism: str  # one of PARALLELISM
  optimization: str  # one of OPTIMIZATION
  scheduling: str  # one of SCHEDULING
  pattern: str  # one of PATTERN
  payload: str  # one of PAYLOAD


PARALLELISM = ("data", "model", "hybrid")
OPTIMIZATION = ("centralized", "decentralized")
SCHEDULING = ("synchronous", "asynchronous", "bounded", "delayed")
PATTERN = ("all-reduce", "reduce-scatter + all-gather", "parameter server", "round robin", "peer to peer", "none")
PAYLOAD = ("gradients", "parameters", "differences", "nothing")


class Spec(NamedTuple):
  """An algorithm's registry entry: its factory, with defaults in the signature, and its description."""

  factory: Callable[..., Any]  # (inner, *, **hyper) -> Algorithm or ServerAlgorithm; it may also take `workers`
  title: str  # one line for tables
  citation: str  # authors, year, arXiv id
  taxonomy: Taxonomy
  symbols: Mapping[str, str] = {}  # hyperparameter -> its symbol in the paper
  expects: Mapping[str, tuple[Any, str]] = {}  # config key -> (expected value, the effect of any other value)


class Wrapper(NamedTuple):
  """A wrapper's registry entry: a factory that changes what an algorithm sends, and its description."""

  factory: Callable[..., Algorithm]  # (algorithm, *, **hyper) -> Algorithm
  title: str  # one line for tables
  citation: str  # authors, year, arXiv id
  symbols: Mapping[str, str] = {}  # hyperparameter -> its symbol in the paper
  payload: str = "gradients"  # the payload that the wrapper changes: "gradients" (and differences) or "parameters"


class Model(NamedTuple):
  """A model as pure functions. `extra` is its non-trained state, such as batch-norm statistics, or {}.

  Attributes:
    metrics: returns per-example test metrics by name: "loss", "accuracy" for classification and language tasks, and
      any others. None: report only the loss, computed with a fixed key.
    dense: whether gradients stay fast under vmap and scan on a CPU, unlike those of XLA's convolutions (see
      `ddl.models.cpu.convolve`).
    rules: sharding rules over a worker's devices, by name. Every model also supports "fsdp".
    microbatches: number of parts that a batch is split into, to save memory; their gradients are computed one after
      another. The mean of their losses must equal the loss of the batch.
    compute_dtype: floating-point type in which the loss is computed; None: the type of the parameters.
  """

  init: Callable[[Any], tuple[Tree, Tree]]  # key -> (params, extra)
  loss: Callable[[Tree, Tree, Batch, Any], tuple[Any, Tree]]  # (params, extra, batch, key) -> (scalar, extra)
  metrics: Callable[[Tree, Tree, Batch], Mapping[str, Any]] | None = None  # -> {"loss": [batch], ...}
  dense: bool = False
  rules: Mapping[str, Rules] = {}
  microbatches: int = 1
  compute_dtype: Any = None


class Source(NamedTuple):
  """Examples by index: `take(indices [k])` returns the NumPy arrays {"x": [k, ...], "y": [k, ...]}.

  `take` returns examples without augmentation. `augmented(generators [n], indices [n, b])` returns n randomly augmented
  training batches of b examples, in order: {"x": [n * b, ...], "y": [n * b, ...]}. Batch i may depend only on generator
  i and its b examples. Both functions must be thread-safe.

  `stream(worker, workers, seed)` returns a `grain.IterDataset` of training examples in a fixed order (see
  `ddl.data.stream`). With a stream, `size` is the number of examples in an epoch, and `take` returns copies of one
  example, which only provide shapes.
  """

  size: int
  take: Callable[[np.ndarray], dict[str, np.ndarray]]
  labels: np.ndarray | None = None  # [size] int, the groups of label-skewed partitions: the classes y, or other
  # groups, whose numbers start at num_outputs
  augmented: Callable[[Sequence[np.random.Generator], np.ndarray], dict[str, np.ndarray]] | None = None  # ([n], [n, b])
  stream: Callable[[int, int, int], Any] | None = None


def channels_first(shape: Sequence[int]) -> bool:
  """Return whether images of this shape look like [channels, height, width]: 1, 3 or 4 channels, sides >= 5."""
  return len(shape) == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) > 4


class Data(NamedTuple):
  """A data set: training, validation and test examples, and their description.

  meta: {"task": "classification" | "regression" | "language", "shape": shape of x of one example, "num_outputs":
  number of classes, outputs or tokens, "description": one line on the origin of the examples, ...}
  tests: further test sets by name; their metrics are test_<name>_loss, test_<name>_accuracy, ...
  """

  train: Source
  test: Source
  meta: Mapping[str, Any]
  validation: Source | None = None
  tests: Mapping[str, Source] = {}
