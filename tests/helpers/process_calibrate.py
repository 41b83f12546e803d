"""A small calibration in several processes (argument: their number), run by `test_calibrate.py`."""

import json
import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from absl import flags

from ddl import hosts
from ddl.perf import cluster_file
from experiments.bench import calibration, microbench


def main() -> None:
  """Calibrate in one of the processes."""
  flags.FLAGS(sys.argv[:1])
  cases = calibration.CASES[1], *calibration.CURVES["dense"]  # as many as there are rates to fit
  blocks, work = microbench.prepare(microbench.join(), cases, (2**10, 2**20))
  seconds = microbench.interleaved(blocks, 3, 0.02)
  result = calibration.solve(work, seconds)
  if hosts.is_main():
    cluster_file.save(result.cluster, {"rows": result.rows})
    shapes = {tuple(s.shape) for s in seconds.values()}
    print(json.dumps({"overlap": result.cluster.overlap, "overhead": result.overhead, "shapes": list(shapes)}))


if __name__ == "__main__":
  sys.exit(main() if hosts.processes() > 1 else hosts.launch(int(sys.argv[1]), hosts.command_line()))
