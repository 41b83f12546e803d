"""Equalities of HALoS with async local SGD, in float64 at rtol 1e-12."""

import jax
import numpy as np
import pytest
from helpers.servers import EVENTS, build, drive, visits
from helpers.twins import close, flat_of
from reference import collective as reference

from ddl.engine.traffic import relayed_nbytes, visit_nbytes

pytestmark = pytest.mark.usefixtures("x64")
ORDER = visits(4)[0]
SGD = {"rate": 1.0, "momentum": 0.0, "every": 1}
OUTER = {"rate": 0.2, "momentum": 0.9, "every": 3}
ASYNC = {"outer_learning_rate": 0.2 * 3, "outer_momentum": 0.9, "every": 3, "period": 2}


def run(name, order=ORDER, reads=(), **hyper):
  x0, grad = reference.problem(4, 4 * EVENTS)
  return drive(build(name, "adam", workers=4, **hyper), x0, grad, order, workers=4, reads=reads)


def halos(lower, upper, **hyper):
  tiers = {
    f"{tier}_{key}": value for tier, part in (("local", lower), ("global", upper)) for key, value in part.items()
  }
  return {"period": 2, **tiers, **hyper}


def test_regions_of_one_worker_are_async_local_sgd_at_the_global_server():
  """The code replies before the merge; here each worker reads its region's model after the merge."""
  hyper = halos(SGD, OUTER, group_size=1, merge_every=1, merge_weight=1.0)
  params, evaluate, *_ = run("halos", reads=ORDER, **hyper)
  plain = run("async_local_sgd", **ASYNC)
  close(params, plain[0])
  close(evaluate, plain[1])
  assert not np.allclose(run("halos", **hyper)[1], plain[1])


def test_one_region_is_async_local_sgd_at_the_region():
  params, evaluate, server, _ = run("halos", **halos(OUTER, SGD, group_size=4, merge_every=1, merge_weight=1.0))
  plain = run("async_local_sgd", **ASYNC)
  close(params, plain[0])
  close(evaluate, plain[1])
  close(flat_of(jax.tree.map(lambda x: x[0], server.regions.server.center)), plain[1][-1])


@pytest.mark.parametrize("link", [0, 1])
def test_regions_without_a_merge_weight_are_independent(link):
  params, *_ = run("halos", **halos(OUTER, OUTER, group_size=2, merge_every=2, merge_weight=0.0, link=link))
  for region in (0, 1):
    mine = region == ORDER // 2
    close(params[mine], run("async_local_sgd", order=ORDER[mine], **ASYNC)[0])
  merged = run("halos", **halos(OUTER, OUTER, group_size=2, merge_every=2, merge_weight=0.25, link=link))[0]
  assert not np.allclose(params, merged)


def test_a_message_between_regions_takes_as_many_updates_as_its_link():
  """The global model changes `link` updates after the K-th, and the region 2 link updates after it."""
  hyper = halos(SGD, SGD, group_size=4, merge_every=3, merge_weight=1.0, link=2)
  _, evaluate, server, _ = run("halos", **hyper)
  moved = np.flatnonzero(np.abs(np.diff(evaluate, axis=0, prepend=evaluate[:1])).max(axis=1) > 0)
  assert moved.tolist() == [4, 11]  # the updates 5 and 12 = 7 + 5; a cycle has K + 2 link = 7 updates
  assert int(server.regions.updates[0]) == EVENTS % 7


PARAMS = {"w": jax.ShapeDtypeStruct((3, 5), np.float32), "b": jax.ShapeDtypeStruct((5,), np.float32)}


@pytest.mark.parametrize("link", [0, 1])
def test_a_visit_sends_one_model_each_way_and_a_merge_too(link):
  hyper = halos(SGD, SGD, group_size=2, merge_every=3, merge_weight=1.0, link=link)
  algorithm = build("halos", workers=4, **hyper)
  assert visit_nbytes(algorithm, PARAMS) == (4 * 20, 4 * 20)
  order = np.tile([0, 1, 2, 3], 3 + 2 * link)  # two whole cycles of each region's 3 + 2 link updates
  evaluate = run("halos", order, **hyper)[1]
  merges = np.count_nonzero(np.abs(np.diff(evaluate, axis=0, prepend=evaluate[:1])).max(axis=1))
  assert merges == 4
  assert relayed_nbytes(algorithm, PARAMS) * len(order) == pytest.approx(merges * 2 * 4 * 20)


def test_defaults_have_the_periods_of_dylu():
  assert build("halos", workers=2).periods((1.0, 1.3)) == (8, 6)
  assert build("async_local_sgd", workers=2, period=20, dylu=True).periods((1.0, 2.0)) == (20, 10)
  assert build("async_local_sgd", workers=2).periods is None
