"""`python run.py bench --perf`: compare predicted and measured seconds per step, on held-out models.

Several processes run one worker each, with the trainer that `train` uses. Timed blocks of the calibration and of the
held-out models are interleaved. The compute time of a step is obtained in two ways: measured without exchanges, so that
only the effect of exchanges is predicted, or predicted from XLA's count of FLOP and bytes, with the rates fitted to the
calibration's models.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from ddl import hosts
from ddl.api import Algorithm
from ddl.costs.cluster_clock import pattern_of, vector
from ddl.perf import patterns
from ddl.perf.bounds import round_seconds
from ddl.perf.units import percent, seconds_text
from ddl.run.folder import about
from experiments.bench import calibration, microbench
from experiments.bench.calibration import Calibration, MeasuredStep, ModelCase

HELD_OUT = (
  ModelCase("mlp", {"hidden": (640, 320)}, 48),
  ModelCase("mlp", {"hidden": (768,)}, 96),
  ModelCase("lenet", {"channels": (12, 24)}, 24),
  ModelCase("linear", {}, 128),
  ModelCase("transformer", {"layers": 1, "width": 96, "heads": 4}, 6),
)
ALGORITHMS: tuple[tuple[str, dict[str, Any]], ...] = (
  ("sync_sgd", {}),
  ("local_sgd", {"period": 4}),
  ("local_sgd", {"period": 10}),
  ("dasgd", {"period": 10, "delay": 2, "keep": 0.25}),
  ("easgd", {"period": 10}),
)
PASSES = 7
GOAL = 0.15  # goal of the median error


def main(json_file: str, processes: int, command: Sequence[str]) -> int:
  """Measure, predict and print the errors; return the exit code. command: recorded in `json_file`."""
  if hosts.processes() == 1:
    return microbench.launch("bench --perf", processes)
  workers = microbench.join()
  blocks, work = microbench.prepare(workers)
  steps: dict[str, MeasuredStep] = {}
  algorithms: dict[str, Algorithm] = {}
  for i, case in enumerate(HELD_OUT):
    microbench.progress(f"compiling {case.name} ({i + 1} of {len(HELD_OUT)} held out)")
    for name, hyper in (("independent", {}), *ALGORITHMS):
      known = steps.get(case.name)
      trainer, experiment, steps[case.name] = microbench.make_trainer(case, name, hyper, workers, known)
      label = _label(case, name, hyper)
      blocks[label], _ = microbench.trainer_blocks(trainer, experiment)
      algorithms[label] = trainer.algorithm
  microbench.progress(f"measuring {len(blocks)} blocks, {PASSES} times, interleaved")
  measured = microbench.interleaved(blocks, PASSES)
  solved = calibration.solve(work, measured)
  seconds = {label: calibration.typical(measured[label]) for label in blocks}
  results = [r for case in HELD_OUT for r in _compared(case, steps[case.name], algorithms, solved, seconds)]
  if hosts.is_main():
    print("\n".join(_lines(results)))
    if json_file:
      metadata = about(command, device=jax.devices()[0].device_kind, processes=jax.process_count())
      Path(json_file).write_text(json.dumps({"about": metadata, "cases": results}, indent=2) + "\n")
  return 0


def predict(algorithm: Algorithm, step: float, messages: tuple[int, ...], calibrated: Calibration) -> float:
  """Predict the seconds per step, averaged over a round.

  step: seconds of compute per step. messages: bytes of each message of an exchange of all parameters.
  """
  workers, network = calibrated.cluster.workers or 1, calibrated.cluster.network
  sent = [pattern_of(algorithm, vector(nbytes), workers) for nbytes in messages]
  step += sum(patterns.seconds(pattern.local, workers, network) for pattern in sent)
  if not algorithm.exchanges:
    return step
  message = sum(patterns.seconds(pattern.exchanges[0].ops, workers, network) for pattern in sent)
  period, delay = sent[0].exchanges[0].steady, sent[0].exchanges[0].delay if calibrated.cluster.overlap else 0
  return round_seconds(step=step, message=message, period=period, delay=delay) / period


def _compared(
  case: ModelCase, step: MeasuredStep, algorithms: dict[str, Algorithm], calibrated: Calibration,
  seconds: dict[str, float],
) -> list[dict[str, Any]]:  # fmt: skip
  """Compare prediction and measurement for each algorithm. seconds: text of `_label` -> measured seconds per step."""
  computing = {
    "measured_step": seconds[_label(case, "independent", {})],
    "rates": calibrated.rates[step.kind].seconds(step.flop, step.moved, step.fed),
  }
  results = []
  for name, hyper in ALGORITHMS:
    label = _label(case, name, hyper)
    measured = seconds[label]
    predicted = {kind: predict(algorithms[label], t, step.messages, calibrated) for kind, t in computing.items()}
    errors = {kind: value / measured - 1 for kind, value in predicted.items()}
    examples = case.batch * (calibrated.cluster.workers or 1) / measured
    results.append(
      {"model": case.name, "algorithm": name, **hyper, "measured_s": measured, "examples_per_s": examples,
       "predicted_s": predicted, "errors": errors, "step_s": computing}
    )  # fmt: skip
  return results


def _label(case: ModelCase, name: str, hyper: dict[str, Any]) -> str:
  return f"{case.name} {name} {hyper}"


def _lines(results: list[dict[str, Any]]) -> list[str]:
  head = f"{'held out':42}{'algorithm':22}{'measured':>10}{'measured step':>15}{'error':>9}{'by rates':>11}{'error':>9}"
  out = [head + "   (seconds per step)"]
  for r in results:
    settings = " ".join(str(r[key]) for key in ("period", "delay") if key in r)
    row = f"{r['model']:42}{r['algorithm'] + ' ' + settings:22}{seconds_text(r['measured_s']):>10}"
    for kind, width in (("measured_step", 15), ("rates", 11)):
      row += f"{seconds_text(r['predicted_s'][kind]):>{width}}{100 * r['errors'][kind]:+7.1f} %"
    out.append(row)
  for kind, text in (("measured_step", "step measured without exchange"), ("rates", "step by FLOP and bytes")):
    sizes = [abs(result["errors"][kind]) for result in results]
    out.append(
      f"{text}: median error {percent(statistics.median(sizes))}, maximum {percent(max(sizes))} of {len(sizes)} cases "
      f"(goal: median below {percent(GOAL)})"
    )
  return out
