"""Errors for user-defined algorithms and models that violate `ddl.api`: one line that names the function."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ddl.algorithms import COLLECTIVE, SERVER, WRAPPERS
from ddl.api import Exchange
from ddl.as_optax import as_optax
from ddl.asynchronous.ray_cluster import RayCluster
from ddl.asynchronous.simulator import Simulator
from ddl.asynchronous.threads import Threads
from ddl.config import default_experiment
from ddl.contract import of_collective, of_model, of_server, trace_model
from ddl.engine import traffic
from ddl.engine.compiled_trainer import CompiledTrainer
from ddl.engine.execution import ExecutionConfig
from ddl.engine.workers import make_workers
from ddl.errors import OptionError
from ddl.events.barriers import BARRIERS
from ddl.events.schedule import make_schedule
from ddl.events.times import TIMES
from ddl.models import MODELS
from ddl.run.build import build

PARAMS = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(3)}
META = {"task": "classification", "shape": (4,), "num_outputs": 3}
BATCH = {"x": np.zeros((2, 4), np.float32), "y": np.zeros(2, np.int32)}
RULE = COLLECTIVE["local_sgd"].factory(optax.sgd(0.1, momentum=0.9), period=2)
SERVED = SERVER["async_sgd"].factory(optax.sgd(0.1, momentum=0.9))
NET = MODELS["mlp"](META, hidden=(4,))
(AVERAGE,) = RULE.exchanges


def cut(tree):
  """Return the first row of each array."""
  return jax.tree.map(lambda x: x[:1], tree)


def exchange(**changes):
  return {"exchanges": (AVERAGE._replace(**changes),)}


COLLECTIVES = {  # (changes of local SGD, error)
  "local none": ({"local": lambda g, d, s, p: None}, r"local must return \(params, state\), got None\."),
  "local one": (
    {"local": lambda g, d, s, p: p}, r"local must return \(params, state\), got a dict with the keys 'a', 'b'\."
  ),
  "local shape": ({"local": lambda g, d, s, p: (cut(p), s)}, r"must return params\['a'\] as .*, got float32\[1, 3\]\."),
  "local type": (
    {"local": lambda g, d, s, p: (jax.tree.map(lambda x: x.astype(jnp.float16), p), s)}, r"got float16\[2, 3\]\."
  ),
  "local order": ({"local": lambda g, d, s, p: (s, p)}, r"local must return params with .* without \['a'\]"),
  "local state": ({"local": lambda g, d, s, p: (p, None)}, "local must return state with the structure"),
  "local arguments": ({"local": lambda g, d, s: (s, s)}, r"local failed \(TypeError: "),
  "local object": ({"local": 3}, r"local of Algorithm must be a function, got 3\."),
  "init text": ({"init": lambda g, p, k: "x"}, r"init must return arrays, got 'x'"),
  "evaluate none": ({"evaluate": lambda g, s, p: None}, "evaluate must return params with the structure"),
  "evaluate shape": ({"evaluate": lambda g, s, p: cut(p)}, r"evaluate must return params\['a'\]"),
  "launch state": (exchange(launch=lambda g, s, p: (p, None)), "launch must return state with the structure"),
  "launch one": (exchange(launch=lambda g, s, p: 3.0), r"launch must return \(message, state\), got 3\.0\."),
  "launch text": (exchange(launch=lambda g, s, p: ("x", s)), r"launch must return arrays, got 'x'"),
  "launch none": (exchange(launch=None), r"launch of Exchange must be a function, got None\."),
  "merge none": (exchange(merge=lambda g, m, s, p: None), r"merge must return \(params, state\), got None\."),
  "merge shape": (exchange(merge=lambda g, m, s, p: (cut(p), s)), r"merge must return params\['a'\]"),
  "period": (exchange(period=0), r"period of an exchange must be an integer >= 1, got 0\."),
  "period text": (exchange(period="x"), r"period of an exchange must be an integer >= 1, got 'x'\."),
  "period half": (exchange(period=2.5), r"period of an exchange must be an integer >= 1, got 2\.5\."),
  "period function": (exchange(period=lambda k: None), r"in round 0 must be an integer >= 1, got None\."),
  "delay": (exchange(delay=-1), r"delay of an exchange must be an integer >= 0, got -1\."),
  "offset": (exchange(offset=None), r"offset of an exchange must be an integer"),
  "exchanges none": ({"exchanges": None}, r"exchanges of the algorithm must be a tuple of ddl\.Exchange, got None\."),
  "exchanges one": ({"exchanges": AVERAGE}, r"a tuple of ddl\.Exchange, got Exchange\."),
  "exchanges mixed": ({"exchanges": (AVERAGE, 3)}, r"a tuple of ddl\.Exchange, got Exchange, int\."),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_errors_of_collective_algorithms(name):
  changes, words = COLLECTIVES[name]
  with pytest.raises(ValueError, match=words) as refused:
    traffic.of(of_collective(RULE._replace(**changes)), PARAMS, 2)
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["local none", "merge shape", "exchanges none", "evaluate none"])
def test_the_trainer_checks_algorithms_before_compilation(name):
  changes, words = COLLECTIVES[name]
  with pytest.raises(ValueError, match=words.replace(r"\['a'\]", r"\['Dense_0'\]")):
    CompiledTrainer(RULE._replace(**changes), NET, make_workers(2), ExecutionConfig("vmap", "scan", 4, True))


@pytest.mark.parametrize("name", ["local none", "merge none", "exchanges none"])
def test_as_optax_checks_algorithms(name):
  changes, words = COLLECTIVES[name]

  def worker(grads):
    tx = as_optax(RULE._replace(**changes), "w")
    return tx.update(grads, tx.init(PARAMS), PARAMS)[0]

  with pytest.raises(ValueError, match=words):
    jax.vmap(worker, axis_name="w")(jax.tree.map(lambda x: jnp.stack([x, x]), PARAMS))


SERVERS = {  # (changes of asynchronous SGD, error)
  "init one": ({"init": lambda p: p},
               r"init must return \(worker state, server, reply\), got a dict with the keys '[aD]\w*', '[bD]\w*'\."),
  "local none": ({"local": lambda d, s, p: None}, r"local must return \(params, state\), got None\."),
  "request none": ({"request": lambda s, p: None}, r"serve failed \(ValueError: "),
  "request text": ({"request": lambda s, p: "x"}, r"request must return arrays, got 'x'\."),
  "serve one": ({"serve": lambda s, m, v: 3}, r"serve must return \(server, reply\), got 3\."),
  "serve server": ({"serve": lambda s, m, v: (None, m)}, "serve must return server with the structure"),
  "serve reply": ({"serve": lambda s, m, v: (s, cut(m))}, r"serve must return reply\['a'\] as float32\[2, 3\]"),
  "merge one": ({"merge": lambda r, s, p: p},
                r"merge must return \(params, state\), got a dict with the keys 'a', 'b'\."),
  "evaluate": ({"evaluate": lambda s: s}, "evaluate must return params with the structure"),
  "read none": ({"read": lambda s, r, v: None}, r"read must return \(server, reply\), got None\."),
  "period": ({"period": 0}, r"period of the algorithm must be an integer >= 1, got 0\."),
  "delay": ({"delay": None}, r"delay of the algorithm must be an integer >= 0, got None\."),
  "arrivals": ({"arrivals": None}, r"arrivals of the algorithm must be a ddl\.api\.Arrivals, got None"),
  "lock_free": ({"lock_free": 3}, r"lock_free of the algorithm must be a ddl\.api\.LockFree, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_errors_of_server_algorithms(name):
  changes, words = SERVERS[name]
  with pytest.raises(ValueError, match=words) as refused:
    of_server(SERVED._replace(**changes), PARAMS)
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["local none", "init one"])
def test_threads_check_algorithms(name):
  changes, words = SERVERS[name]
  with pytest.raises(ValueError, match=words):
    Threads(SERVED._replace(**changes), NET, workers=2, seed=0, barrier=BARRIERS["asp"]())


@pytest.mark.parametrize("name", ["local none", "init one"])
def test_the_simulator_and_ray_check_algorithms(name):
  changes, words = SERVERS[name]
  wrong, how = SERVED._replace(**changes), ExecutionConfig("vmap", "scan", 4)
  schedule = make_schedule(SERVED, workers=2, steps=4, times=TIMES["constant"](workers=2, seed=0))
  for start in (
    lambda: Simulator(wrong, NET, make_workers(2), how, *schedule),
    lambda: RayCluster.run(SimpleNamespace(algorithm=wrong), PARAMS, {}, 4, None, ()),
  ):
    with pytest.raises(ValueError, match=words):
      start()


NETS = {  # (changes of a multi-layer perceptron, error)
  "init one": ({"init": lambda k: NET.init(k)[0]},
               r"init of the model must return \(params, extra\), got a dict with the keys 'Dense_0', 'Dense_1'\."),
  "init none": ({"init": None}, r"init of Model must be a function, got None\."),
  "loss one": ({"loss": lambda p, e, b, k: 0.0}, r"loss of the model must return \(loss, extra\), got 0\.0\."),
  "loss vector": ({"loss": lambda p, e, b, k: (jnp.zeros(3), e)},
                  r"loss .* must return a floating-point scalar as the loss, got float32\[3\]\."),
  "loss integer": ({"loss": lambda p, e, b, k: (1, e)},
                   r"loss .* must return a floating-point scalar as the loss, got 1\."),
  "loss extra": ({"loss": lambda p, e, b, k: (jnp.zeros(()), None)}, "loss of the model must return extra"),
  "metrics none": ({"metrics": lambda p, e, b: None},
                   r"metrics of the model must return a dict with the key 'loss', got None\."),
  "metrics scalar": ({"metrics": lambda p, e, b: {"loss": jnp.zeros(())}}, r"'loss' of shape \[2\] .one value"),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_errors_of_models(name):
  changes, words = NETS[name]
  with pytest.raises(ValueError, match=words) as refused:
    trace_model(of_model(NET._replace(**changes)), BATCH)
  assert "\n" not in str(refused.value)


def test_all_trainers_check_the_model():
  net, workers, how = NET._replace(init=None), make_workers(2), ExecutionConfig("vmap", "scan", 4)
  schedule = make_schedule(SERVED, workers=2, steps=4, times=TIMES["constant"](workers=2, seed=0))
  for start in (
    lambda: CompiledTrainer(RULE, net, workers, how),
    lambda: Simulator(SERVED, net, workers, how, *schedule),
    lambda: Threads(SERVED, net, workers=2, seed=0, barrier=BARRIERS["asp"]()),
  ):
    with pytest.raises(ValueError, match=r"init of Model must be a function, got None\."):
      start()


@pytest.mark.parametrize("name", COLLECTIVE)
def test_collective_algorithms_satisfy_the_contract(name):
  start = {"start": 2} if name == "post_local_sgd" else {}
  optimizer = {"name": "sgd", "momentum": 0.9}
  experiment = default_experiment(algorithm={"name": name, **start}, optimizer=optimizer, workers=4)
  traffic.of(of_collective(experiment.make_algorithm()), PARAMS, 4)


@pytest.mark.parametrize("name", SERVER)
def test_server_algorithms_satisfy_the_contract(name):
  of_server(default_experiment(algorithm={"name": name}, workers=4).make_algorithm(), PARAMS)


def test_a_checked_algorithm_computes_the_same():
  workers = partial(jax.vmap, axis_name="w")

  def train(algorithm, target):
    tx = as_optax(algorithm, "w")
    params, state = jnp.zeros(3), tx.init(jnp.zeros(3))
    for _ in range(5):
      updates, state = tx.update(params - target, state, params)
      params = optax.apply_updates(params, updates)
    return params

  targets = jnp.arange(6.0).reshape(2, 3)
  one, other = (workers(partial(train, algorithm))(targets) for algorithm in (RULE, of_collective(RULE)))
  np.testing.assert_array_equal(one, other)
  assert isinstance(RULE.exchanges[0], Exchange)


FILE = """
from ddl.api import Algorithm, ServerAlgorithm
from ddl.algorithms.collective.local_sgd import local_sgd
from ddl.algorithms.server.async_sgd import async_sgd
from ddl.models.mlp import mlp


def rule(inner, *, period: int = 2) -> Algorithm:
  return local_sgd(inner, period=period)._replace(local=lambda group, grads, state, params: None)


def served(inner, *, workers: int = 2) -> ServerAlgorithm:
  return async_sgd(inner)._replace(arrivals=None)


def net(meta):
  return mlp(meta)._replace(loss=lambda params, extra, batch, key: 0.0)
"""


@pytest.mark.parametrize(
  "kind, name, words", [("algorithm", "rule", "local must return"), ("model", "net", "loss of the")]
)
def test_an_error_names_the_file_of_the_config(tmp_path, kind, name, words):
  (tmp_path / "mine.py").write_text(FILE)
  experiment = default_experiment(**{kind: {"name": f"{tmp_path}/mine.py:{name}"}}, workers=2)
  where = rf"user-defined code \(config\.{kind}\.name={tmp_path}/mine\.py:{name}\)"
  with pytest.raises(ValueError, match=f"^{where}: {words}"):
    build(experiment)


def test_the_arrivals_of_a_user_defined_server_algorithm_are_checked(tmp_path):
  (tmp_path / "mine.py").write_text(FILE)
  with pytest.raises(ValueError, match=r"arrivals of the algorithm must be a ddl\.api\.Arrivals, got None"):
    build(default_experiment(algorithm={"name": f"{tmp_path}/mine.py:served"}, workers=2))


@pytest.mark.parametrize("inner", [None, 0.1, optax.sgd, {"learning_rate": 0.1}, RULE])
def test_factories_accept_only_optimizers(inner):
  for name, spec in {**COLLECTIVE, **SERVER}.items():
    with pytest.raises(OptionError) as error:
      spec.factory(inner)
    assert (error.value.option, error.value.value) == (f"{name}.inner", type(inner).__name__)


@pytest.mark.parametrize("algorithm", [None, optax.sgd(0.1), SERVED])
def test_wrappers_accept_only_collective_algorithms(algorithm):
  for name, spec in WRAPPERS.items():
    with pytest.raises(OptionError) as error:
      spec.factory(algorithm)
    assert error.value.option == f"{name}.algorithm"
