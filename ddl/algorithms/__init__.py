"""The collective algorithms by name. A new one is a file beside this one, and its line here."""

from ddl.algorithms import (
  dasgd,
  eamsgd,
  easgd,
  independent,
  local_sgd,
  post_local_sgd,
  round_robin_easgd,
  sharded_sync_sgd,
  sync_sgd,
)

COLLECTIVE = {
  "sync_sgd": sync_sgd.SPEC,
  "sharded_sync_sgd": sharded_sync_sgd.SPEC,
  "local_sgd": local_sgd.SPEC,
  "post_local_sgd": post_local_sgd.SPEC,
  "dasgd": dasgd.SPEC,
  "easgd": easgd.SPEC,
  "eamsgd": eamsgd.SPEC,
  "round_robin_easgd": round_robin_easgd.SPEC,
  "independent": independent.SPEC,
}
