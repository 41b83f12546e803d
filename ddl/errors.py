"""Errors that carry the option at fault as data, with one text for calls and for commands."""

import difflib
from collections.abc import Iterable


class OptionError(ValueError):
  """An invalid option: `<option> must be <condition>, got <value>. <advice>`.

  Attributes:
    option: an argument, a field of `RunOptions` such as "workdir", or a key such as "config.algorithm.period".
    condition: that its value does not meet, such as "an integer >= 1".
    value: as the text shows it; None: the option is missing, or the condition says all.
    advice: at most one sentence.
  """

  def __init__(self, option: str, condition: str, value: object = None, advice: str = ""):
    """Keep all four in `args`, from which an exception is pickled."""
    super().__init__(option, condition, value, advice)
    self.option, self.condition, self.value, self.advice = option, condition, value, advice

  def __str__(self) -> str:
    """The text, one line."""
    got = "" if self.value is None else f", got {self.value}"
    return f"{self.option} must be {self.condition}{got}.{f' {self.advice}' * bool(self.advice)}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
  """Return the advice to use the known name that is nearest to a wrong one, or ""."""
  near = difflib.get_close_matches(name, [*known], n=1, cutoff=cutoff)
  return f"Did you mean '{near[0]}'?" if near else ""
