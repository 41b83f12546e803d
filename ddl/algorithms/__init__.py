"""The registries of algorithms and wrappers.

To add an entry, add its file, and a line here and in `ddl/__init__.pyi`.
"""

from ddl.algorithms.collective import (
  adaptive_local_sgd,
  bmuf,
  cocod,
  dasgd,
  diloco,
  eager_diloco,
  eamsgd,
  easgd,
  fedavg,
  hierarchical_sgd,
  independent,
  local_sgd,
  noloco,
  overlap_local_sgd,
  pipe_sgd,
  post_local_sgd,
  round_robin_easgd,
  scaffold,
  sharded_sync_sgd,
  slowmo,
  sma,
  streaming_diloco,
  sync_sgd,
)
from ddl.algorithms.gossip import ad_psgd, d_psgd, gosgd, overlap_sgp, pull_gossip, push_gossip, sgp
from ddl.algorithms.server import (
  async_easgd,
  async_local_sgd,
  async_measgd,
  async_msgd,
  async_sgd,
  dc_asgd,
  downpour,
  dynsgd,
  hogwild_easgd,
  hogwild_sgd,
  original_easgd,
  staleness_aware_sgd,
)
from ddl.algorithms.wrappers import demo, fp8, int8, powersgd, qsgd, randomk, sign, sparta, topk

COLLECTIVE = {
  "sync_sgd": sync_sgd.SPEC,
  "sharded_sync_sgd": sharded_sync_sgd.SPEC,
  "pipe_sgd": pipe_sgd.SPEC,
  "local_sgd": local_sgd.SPEC,
  "post_local_sgd": post_local_sgd.SPEC,
  "adaptive_local_sgd": adaptive_local_sgd.SPEC,
  "hierarchical_sgd": hierarchical_sgd.SPEC,
  "fedavg": fedavg.SPEC,
  "scaffold": scaffold.SPEC,
  "dasgd": dasgd.SPEC,
  "cocod": cocod.SPEC,
  "overlap_local_sgd": overlap_local_sgd.SPEC,
  "slowmo": slowmo.SPEC,
  "bmuf": bmuf.SPEC,
  "diloco": diloco.SPEC,
  "streaming_diloco": streaming_diloco.SPEC,
  "eager_diloco": eager_diloco.SPEC,
  "noloco": noloco.SPEC,
  "easgd": easgd.SPEC,
  "eamsgd": eamsgd.SPEC,
  "sma": sma.SPEC,
  "round_robin_easgd": round_robin_easgd.SPEC,
  "d_psgd": d_psgd.SPEC,
  "sgp": sgp.SPEC,
  "overlap_sgp": overlap_sgp.SPEC,
  "independent": independent.SPEC,
}

SERVER = {
  "async_sgd": async_sgd.SPEC,
  "async_msgd": async_msgd.SPEC,
  "hogwild_sgd": hogwild_sgd.SPEC,
  "async_easgd": async_easgd.SPEC,
  "async_measgd": async_measgd.SPEC,
  "hogwild_easgd": hogwild_easgd.SPEC,
  "original_easgd": original_easgd.SPEC,
  "downpour": downpour.SPEC,
  "dc_asgd": dc_asgd.SPEC,
  "dynsgd": dynsgd.SPEC,
  "staleness_aware_sgd": staleness_aware_sgd.SPEC,
  "async_local_sgd": async_local_sgd.SPEC,
  "gosgd": gosgd.SPEC,
  "pull_gossip": pull_gossip.SPEC,
  "push_gossip": push_gossip.SPEC,
  "ad_psgd": ad_psgd.SPEC,
}

WRAPPERS = {
  "topk": topk.SPEC,
  "randomk": randomk.SPEC,
  "powersgd": powersgd.SPEC,
  "sign": sign.SPEC,
  "qsgd": qsgd.SPEC,
  "int8": int8.SPEC,
  "fp8": fp8.SPEC,
  "demo": demo.SPEC,
  "sparta": sparta.SPEC,
}
"""Wrappers: compressors of an algorithm's means, and SPARTA, which also averages parameters."""
