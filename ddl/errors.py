"""The error for an invalid option; its message is the same for Python calls and commands."""

import difflib
from collections.abc import Iterable


class OptionError(ValueError):
  """An invalid option: `<option> must be <condition>, got <value>. <advice>`.

  Attributes:
    option: an argument, a field of `RunOptions` such as "workdir", or a key such as "config.algorithm.period".
    condition: the condition that the value violates, such as "an integer >= 1".
    value: the value to show; None: show no value, because the option is missing or the condition is clear without it.
    advice: at most one sentence.
  """

  def __init__(self, option: str, condition: str, value: object = None, advice: str = ""):
    """Pass all four arguments to `Exception.args`, from which pickling restores the error."""
    super().__init__(option, condition, value, advice)
    self.option, self.condition, self.value, self.advice = option, condition, value, advice

  def __str__(self) -> str:
    """Return the message as one line."""
    got = "" if self.value is None else f", got {self.value}"
    return f"{self.option} must be {self.condition}{got}.{f' {self.advice}' * bool(self.advice)}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
  """Return advice that suggests the known name closest to the misspelled `name`, or "" if none is close."""
  near = difflib.get_close_matches(name, [*known], n=1, cutoff=cutoff)
  return f"Did you mean '{near[0]}'?" if near else ""


def first_line(error: BaseException) -> str:
  """Return the first nonempty line of an error's message, or the name of its type if the message is empty."""
  return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
