"""Two lemmas: the speed-up of G workers with an overhead in each step, and how many servers hide the exchange.

Zou et al. 2017, arXiv 1709.06622. T = T_C + T_O: only the compute T_C shrinks with the workers G, and
R_O = T_O / T_C is the overhead of ONE worker over its compute. An overhead that grows with G breaks the first lemma:
take R_O at the G in question then. The second leaves out latency and the server's own time. Every function raises
ValueError for invalid numbers.
"""

import math

from ddl.perf import checks
from ddl.perf.planning.delays import ROUNDING


def speedup(workers: float, overhead: float) -> float:
  """(T_C + T_O) / (T_C / G + T_O) = G (1 + R_O) / (1 + G R_O)."""
  return workers * efficiency(workers, overhead)


def efficiency(workers: float, overhead: float) -> float:
  """Alpha = speedup / G = (1 + R_O) / (1 + G R_O), in (0, 1]."""
  if not workers >= 1:
    raise ValueError(f"number of workers is {workers:g}; invalid: must be at least 1")
  checks.amount("overhead over compute", overhead)
  return (1 + overhead) / (1 + workers * overhead)


def workers_for(share: float, overhead: float) -> float:
  """G = (1 + R_O - alpha) / (alpha R_O): up to so many workers have the efficiency alpha; infinite without overhead."""
  checks.amount("overhead over compute", overhead)
  return (1 + overhead - _share(share)) / (share * overhead) if overhead else math.inf


def overhead_for(share: float, workers: float) -> float:
  """R_O = (1 - alpha) / (alpha G - 1): the overhead with which G workers have the efficiency alpha, above 1 / G."""
  if not _share(share) * workers > 1:
    raise ValueError(f"efficiency is {share:g}; invalid: must be above 1/{workers:g}, which any overhead leaves")
  return (1 - share) / (share * workers - 1)


def speedup_limit(overhead: float) -> float:
  """(1 + R_O) / R_O, of ever more workers; infinite without overhead."""
  return (1 + checks.amount("overhead over compute", overhead)) / overhead if overhead else math.inf


def servers_for(
  params_bytes: float, workers: int, bandwidth: float, compute_seconds: float, duplex: float = 0.0
) -> int:
  """N_ps >= (2 - ov) S_p N_w / (B_ps T_C): servers that carry a round's pulls and pushes while the workers compute.

  Args:
    params_bytes: of the model, spread evenly over the servers (S_p).
    workers: that pull and push it once per round (N_w).
    bandwidth: of one server, bytes per second, one way (B_ps).
    compute_seconds: of a worker round (T_C).
    duplex: share of receiving that overlaps sending (ov): 0 as in the paper, 1 for full duplex.
  """
  busy = checks.positive("bytes of the model", params_bytes) / checks.positive("bandwidth of a server", bandwidth)
  needed = (2 - checks.share("duplex", duplex)) * busy * checks.count("number of workers", workers)
  return max(1, math.ceil(needed / checks.positive("compute seconds", compute_seconds) * ROUNDING))


def _share(share: float) -> float:
  return checks.positive("efficiency", checks.share("efficiency", share))
