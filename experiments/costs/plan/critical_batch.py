"""The critical batch of a job, from the gradient noise scale that one of its runs has measured."""

import numpy as np

from ddl import files
from experiments.report.reader import read_run
from experiments.train.folder import run_dir
from experiments.train.metrics.noise_scale import SCALE


def read(folder: str) -> float:
  """Return B_simple in examples: the last one of the run, which grows in training (arXiv 1812.06162).

  ValueError, with what would help, for a folder that is no run's or has no noise scale.
  """
  path = files.local(folder)
  if not (path / run_dir.METRICS).exists():
    raise ValueError(f"--run={folder}: no {run_dir.METRICS} there; give the folder of a run, such as runs/NAME/seed-0")
  files.regular(path / run_dir.METRICS)  # else a pipe would be waited for
  found = read_run(path).columns.get(SCALE, np.empty(0))
  found = found[np.isfinite(found)]
  if not len(found):
    raise ValueError(f"--run={folder} has measured no noise scale; train it with --config.noise_batches=16")
  return float(found[-1])
