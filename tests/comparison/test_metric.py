"""The metric and the target of comparisons and sweeps."""

import pytest

DIGITS = ("--config=configs/digits_compare.py", "--config.steps=4", "--config.eval_every=2")


@pytest.mark.parametrize("command, metric", [("compare", "perplexity"), ("sweep", "f1")])
def test_a_metric_that_the_model_lacks_is_refused(wrong, metric, command):
  flags = [*DIGITS, f"--config.compare.metric={metric}"]
  wrong(flags, "config.compare.metric", f"'{metric}'", "accuracy, loss", command=command)


def test_an_infinite_target_is_refused(wrong):
  flags = [*DIGITS, "--config.compare.metric=loss", "--config.compare.target=inf"]
  wrong(flags, "config.compare.target", "inf", command="compare")
