"""Two lemmas: what a step's overhead leaves of G workers' speed, and how many servers hide the exchange.

Zou et al. 2017, arXiv 1709.06622. T = T_C + T_O: only the compute T_C shrinks with the workers G, and
R_O = T_O / T_C is the overhead of ONE worker over its compute. An overhead that grows with G breaks the first lemma:
take R_O at the G in question then. The second leaves out latency and the server's own time.
"""

import math


def speedup(workers: float, overhead: float) -> float:
  """(T_C + T_O) / (T_C / G + T_O) = G (1 + R_O) / (1 + G R_O).

  Raises:
    ValueError: for fewer than 1 worker, or an overhead that is not a finite number of 0 or more.
  """
  _check(workers, overhead)
  return workers * (1 + overhead) / (1 + workers * overhead)


def efficiency(workers: float, overhead: float) -> float:
  """Alpha = speedup / G = (1 + R_O) / (1 + G R_O), in (0, 1]. ValueError as `speedup`."""
  _check(workers, overhead)
  return (1 + overhead) / (1 + workers * overhead)


def workers_for(share: float, overhead: float) -> float:
  """G = (1 + R_O - alpha) / (alpha R_O): up to so many workers have the efficiency alpha; infinite without overhead.

  Raises:
    ValueError: for an efficiency outside (0, 1] or an invalid overhead.
  """
  _check(1, overhead)
  _check_share(share)
  return (1 + overhead - share) / (share * overhead) if overhead else math.inf


def overhead_for(share: float, workers: float) -> float:
  """R_O = (1 - alpha) / (alpha G - 1): the overhead with which G workers have the efficiency alpha.

  Raises:
    ValueError: for an efficiency outside (0, 1], or of 1 / G or less, which any overhead leaves.
  """
  _check(workers, 0)
  _check_share(share)
  if not share * workers > 1:
    raise ValueError(f"any overhead leaves {workers:g} workers more than 1/{workers:g}; ask for more than {share:g}")
  return (1 - share) / (share * workers - 1)


def speedup_limit(overhead: float) -> float:
  """(1 + R_O) / R_O, of ever more workers; infinite without overhead. ValueError as `speedup`."""
  _check(1, overhead)
  return (1 + overhead) / overhead if overhead else math.inf


def servers_for(
  params_bytes: float, workers: int, bandwidth: float, compute_seconds: float, duplex: float = 0.0
) -> int:
  """N_ps >= (2 - ov) S_p N_w / (B_ps T_C): servers that carry a round's pulls and pushes while the workers compute.

  Args:
    params_bytes: of the model, spread evenly over the servers (S_p).
    workers: that pull and push it once per round (N_w).
    bandwidth: of one server, bytes per second, one way (B_ps).
    compute_seconds: of a worker's round (T_C).
    duplex: share of receiving that overlaps sending (ov): 0 as in the paper, 1 for full duplex.

  Raises:
    ValueError: for anything that is not above 0, or a duplex outside [0, 1].
  """
  for name, value in (("model of", params_bytes), ("bandwidth of", bandwidth), ("compute time of", compute_seconds)):
    if not (math.isfinite(value) and value > 0):
      raise ValueError(f"a {name} {value:g} can't be served; it has to be a finite number above 0")
  if not 0 <= duplex <= 1:
    raise ValueError(f"duplex is {duplex:g}; it is a share from 0 (half duplex) to 1 (full)")
  _check(workers, 0)
  needed = (2 - duplex) * params_bytes * workers / (bandwidth * compute_seconds)
  return max(1, math.ceil(needed * (1 - 1e-12)))  # a quotient that is whole but for its rounding stays so


def _check(workers: float, overhead: float) -> None:
  if not workers >= 1:
    raise ValueError(f"{workers:g} workers are invalid: must be at least 1")
  if not (math.isfinite(overhead) and overhead >= 0):
    raise ValueError(f"an overhead of {overhead:g} of the compute time is invalid: must be a finite one of 0 or more")


def _check_share(share: float) -> None:
  if not 0 < share <= 1:
    raise ValueError(f"an efficiency of {share:g} is invalid: must be above 0 and at most 1")
