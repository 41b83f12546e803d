"""What runs are compared by: the metric that the config names, and targets that it can meet."""

import pytest

DIGITS = ("--config=configs/digits_compare.py", "--config.steps=4", "--config.eval_every=2")


@pytest.mark.parametrize("metric", ["perplexity", "f1"])
@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_what_is_not_measured_is_refused(wrong, metric, command):
  flags = [*DIGITS, f"--config.compare.metric={metric}"]
  wrong(flags, "config.compare.metric", f"'{metric}'", "accuracy, loss", command=command)


def test_a_loss_has_no_bound_at_1(wrong):
  flags = [*DIGITS, "--config.compare.metric=loss", "--config.compare.target=inf"]
  wrong(flags, "config.compare.target", "inf", command="compare")
