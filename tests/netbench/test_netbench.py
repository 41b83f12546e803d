"""Invalid options of netbench, periods and delays by link, predicted seconds, and cleanup after signals."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from helpers.commands import ROOT

from ddl.config import default_experiment
from ddl.costs.step_cost import synthetic
from ddl.perf.cluster import LinkModel
from ddl.run import build
from ddl.run.build import param_shapes
from experiments.netbench import expected, measure, network
from experiments.netbench.cases import CASES, FRAGMENTS, MODEL, Measured
from experiments.netbench.measure import SpeedRow

MEASURED = Measured(step=0.03, exchange=0.3, fragment=0.12)


@pytest.mark.parametrize(("text", "value"), [("50mbit", 5e7), ("1gbit", 1e9), ("1.5Gbit", 1.5e9), ("800kbit", None)])
def test_bandwidths(text, value):
  if value is None:
    with pytest.raises(ValueError, match="from 1mbit to 10gbit"):
      measure.bandwidth(text)
  else:
    assert measure.bandwidth(text) == value


def test_latencies():
  assert [measure.latency(text) for text in ("5ms", "0ms", "250us", ".1s")] == [0.005, 0.0, 0.00025, 0.1]


@pytest.mark.parametrize(
  ("flag", "words"),
  [
    ("--bandwidth=fast", "200mbit"), ("--bandwidth=200", "mbit"), ("--bandwidth=50mbit,-1gbit", "-1gbit"),
    ("--bandwidth=", "bandwidth must be one or more"),
    ("--latency=5", "5ms"), ("--latency=2s", "at most 1s"), ("--hosts=1", "hosts"),
    ("--algorithms=downpour", "streaming_diloco"), ("--bandwidth=20gbit", "10gbit"),
    (f"--bandwidth={'9' * 400}mbit", "10gbit"), (f"--latency={'9' * 400}s", "at most 1s"),
    ("--bandwidth=\u0663mbit", "200mbit"),
  ],
)  # fmt: skip
def test_invalid_options_are_refused(wrong, flag, words):
  wrong([flag], words, command="netbench")


def test_missing_root_is_refused(wrong, monkeypatch):
  monkeypatch.setattr(network, "capabilities", lambda: 0)
  wrong([], "root", "CAP_NET_ADMIN", command="netbench")


def test_net_admin_without_sys_admin_is_refused():
  with pytest.raises(ValueError, match="root"):
    network.check_rights(1 << network.CAP_NET_ADMIN)


def test_periods_and_delays_follow_from_the_measured_link():
  dasgd, streaming, easgd = (CASES[name](MEASURED) for name in ("dasgd", "streaming_diloco", "easgd"))
  assert dasgd.delay == 15  # steps of 0.03 s in 1.5 x 0.3 s
  assert dasgd.period == 30 == streaming.period
  assert streaming.delay == 6
  assert streaming.period % FRAGMENTS == 0
  assert easgd.delay == 1
  assert easgd.batch == 256 * 15  # a step takes as long as the exchange
  assert dasgd.steps % dasgd.period == 0
  fast = CASES["dasgd"](MEASURED._replace(exchange=0.001, fragment=0.001))
  assert (fast.delay, fast.period) == (1, 3)


def expect(name, hosts=2, hidden=(256, 256, 256), **settings):
  model = MODEL | {"hidden": hidden}
  experiment = default_experiment(algorithm={"name": name, **settings}, model=model, workers=hosts, batch=8)
  params = param_shapes(build.make_model(experiment, synthetic("mlp", 8, 16)))
  link = LinkModel(0.005, 1e6)
  return expected.Expected(experiment, params, link, settings.get("period", 1), overlap=True), params


def test_each_large_array_is_a_message_with_four_latencies():
  result, params = expect("local_sgd", hidden=(256, 1024, 1024), period=10)
  leaves = [x.size * 4 for x in jax.tree.leaves(params)]
  large = [n for n in leaves if n >= 2**22]
  assert len(large) == 1
  assert len(leaves) == 8
  np.testing.assert_allclose(
    result.link, sum(leaves) / 1e6 + 2 * 4 * 0.005
  )  # one large array, and all small arrays together
  assert result.nbytes == sum(leaves)


def test_predictions_hide_messages_during_delays():
  step, link = 0.02, expect("local_sgd", period=100)[0].link
  np.testing.assert_allclose(expect("sync_sgd")[0].predicted(step), step + link)
  np.testing.assert_allclose(expect("local_sgd", period=100)[0].predicted(step), 100 * step + link)
  hidden = expect("dasgd", period=100, delay=40, keep=0.5)[0].predicted(step)
  np.testing.assert_allclose(hidden, 100 * step)
  partly = expect("dasgd", period=100, delay=10, keep=0.5)[0].predicted(step)
  np.testing.assert_allclose(partly, 90 * step + link)


def test_a_row_fits_its_columns():
  row = SpeedRow("streaming_diloco", 8192, 250, 125, 1e6, 1.234, 12.34, 10.0, 0.1, 0.5, (10.0,))
  assert len(measure.line(row)) == len(measure.aligned(measure.COLUMNS))


ROOT_NEEDED = pytest.mark.skipif(
  os.geteuid() != 0 or not network.TUN.exists(), reason="network namespaces require root and /dev/net/tun"
)


@pytest.mark.slow
@ROOT_NEEDED
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_remains_after_a_signal(number):
  command = [sys.executable, "run.py", "netbench", "--algorithms=sync_sgd", "--bandwidth=1gbit"]
  process = subprocess.Popen(
    command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background of a shell ignores it
  )  # fmt: skip
  assert process.stdout
  assert process.stdout.readline().startswith("link: 1 Gbit/s")
  end = time.monotonic() + 60
  while len(children := descendants(process.pid)) < 7:  # two namespaces, the link, four processes
    assert process.poll() is None and time.monotonic() < end
    time.sleep(0.1)
  process.send_signal(number)
  code = process.wait(timeout=60)
  assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
  assert "Traceback" not in (process.stderr.read() if process.stderr else "")
  end = time.monotonic() + 10
  while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < end:
    time.sleep(0.1)
  assert not [child for child in children if os.path.exists(f"/proc/{child}")]


def descendants(pid):
  """Process ids of a process's children."""
  with open(f"/proc/{pid}/task/{pid}/children") as file:
    return [int(child) for child in file.read().split()]
