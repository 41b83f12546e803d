"""The gradient noise scale in a report: a picture with the global batch as a line, gaps, columns of the frame."""

import numpy as np
from helpers.comparisons import BATCH, WORKERS, comparison, rising

from ddl.report import frames, reader
from ddl.report.figures import curve_data, curves

RISES = (0.1, 0.5, 0.9, 0.96)


def noisy(*scales):
  lines = rising(*RISES)
  for line, scale in zip(lines, scales, strict=True):
    line.update({"grad_norm2": 0.5, "grad_noise": 10.0} | ({} if scale is None else {"noise_scale": scale}))
  return lines


def test_the_picture_has_the_global_batch(tmp_path):
  folder = comparison(
    tmp_path,
    {"easgd": [noisy(20.0, None, 40.0, 60.0), noisy(20.0, 30.0, 40.0, None)], "local_sgd": [rising(*RISES)] * 2},
  )
  found = reader.read(folder)
  chart = curve_data.chart(found, "examples", "noise_scale")
  (line,) = chart.lines  # the other was not asked
  np.testing.assert_allclose(line.mean, [20.0, 30.0, 40.0])  # where |G|^2 was not told from zero there is no point
  assert chart.target == WORKERS * BATCH and not line.stopped
  picture = next(each for each in curves.pictures(found) if each.name == "noise_scale_vs_examples")
  assert "<!-- global batch -->" in picture.svg


def test_other_batches_have_no_line_and_other_comparisons_no_picture(tmp_path):
  runs = {"easgd": [noisy(20.0, 30.0, 40.0, 60.0)] * 2, "local_sgd": [noisy(20.0, 30.0, 40.0, 60.0)] * 2}
  found = reader.read(comparison(tmp_path / "a", runs, settings={"easgd": {"workers": 1}}))
  assert curve_data.chart(found, "examples", "noise_scale").target is None
  found = reader.read(comparison(tmp_path / "b", {"easgd": [rising(*RISES)] * 2}))
  assert curve_data.chart(found, "examples", "noise_scale") is None


def test_the_frame_has_the_figures(tmp_path):
  frame = frames.metrics_frame(reader.read(comparison(tmp_path, {"easgd": [noisy(20.0, None, 40.0, 60.0)]})))
  assert frame["grad_norm2"].tolist() == [0.5] * 4 and frame["grad_noise"].tolist() == [10.0] * 4
  assert np.isnan(frame["noise_scale"][1]) and frame["noise_scale"][3] == 60.0
