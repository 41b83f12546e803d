"""Valid ranges of numeric settings, as annotations in the signature of a factory, and checks of values.

`period: PositiveInt` annotates a keyword of a factory (or a field of a dataclass) with its type and range. `checked`
makes every call of the factory reject other values; configs read the same ranges from the signature.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from ddl.errors import OptionError

LARGEST_FLOAT = float(np.finfo(np.float32).max)  # larger numbers are infinite in float32
LARGEST_INT = int(np.iinfo(np.int32).max)  # steps and workers are counted in int32
LARGEST_SECONDS = 1e15  # keeps virtual time finite

OPTIMIZER = (("init", "update"), "an optax optimizer like optax.sgd(0.1)")
ARGUMENTS = {  # argument of a factory -> the fields that identify its type, and a description
  "inner": OPTIMIZER,
  "outer": OPTIMIZER,
  "algorithm": (("init", "exchanges"), "a collective ddl.Algorithm"),
}

Factory = TypeVar("Factory", bound=Callable[..., Any])


class Range(NamedTuple):
  """An interval of finite numbers."""

  low: float = -math.inf
  high: float = math.inf
  open_low: bool = False  # excludes `low`
  open_high: bool = False  # excludes `high`
  integer: bool = False
  zero: bool = False  # whether 0 is also valid
  unit: str = ""

  def __contains__(self, value: object) -> bool:
    """Return whether a number is in the interval; NaN, infinities and bools are not."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
      return False
    if not -math.inf < value < math.inf or (self.integer and value != int(value)):
      return False
    above = value > self.low if self.open_low else value >= self.low
    below = value < self.high if self.open_high else value <= self.high
    return bool(above and below) or (self.zero and value == 0)

  def __repr__(self) -> str:
    """Return the condition as text: "in (0, 1]", "> 0", "an integer >= 1"."""
    return self.condition()

  def condition(self, value: Any = None) -> str:
    """Return the condition for an error about `value`.

    An upper bound of LARGEST_INT or more is shown only if `value` reaches it.
    """
    kind = "an integer " if self.integer else ""
    rest = f" {self.unit}" * bool(self.unit) + " or 0" * self.zero
    if self.low == -math.inf:
      return (kind.strip() or "a finite number") + rest
    if self.high < LARGEST_INT or (isinstance(value, int | float) and value >= self.high):
      left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
      return f"{kind}in {left}{_text(self.low)}, {_text(self.high)}{right}{rest}"
    return f"{kind}{'>' if self.open_low else '>='} {_text(self.low)}{rest}"


class ByWorkers(NamedTuple):
  """A default that depends on the number of workers p; the signature shows its formula."""

  formula: str  # such as "0.9 / p"
  value: Callable[[int], Any]  # p -> default

  def __repr__(self) -> str:
    """Return the formula."""
    return self.formula


def integers(low: int, high: int = LARGEST_INT) -> Range:
  """Return the range of integers from `low` to `high`."""
  return Range(low, high, integer=True)


NUMBERS = {int: Range(integer=True), float: Range()}  # the range of a type without an annotation

STATIC = "static"  # marks a number that cannot be traced, because a factory branches on it

PositiveInt = Annotated[int, integers(1)]
NonNegativeInt = Annotated[int, integers(0)]
Seed = Annotated[int, integers(0, 2**32 - 1)]
PositiveFloat = Annotated[float, Range(0, LARGEST_FLOAT, open_low=True)]
NonNegativeFloat = Annotated[float, Range(0, LARGEST_FLOAT)]
Share = Annotated[float, Range(0, 1, open_low=True), STATIC]  # a share of workers or entries; determines their number
UnitInterval = Annotated[float, Range(0, 1)]
Momentum = Annotated[float, Range(0, 1, open_high=True)]
Fraction = Annotated[float, Range(0, 1, open_high=True)]  # such as a dropout rate or a share of examples
# An algorithm's outer learning rate: a number, or a function of the outer step 0, 1, ... such as an optax schedule.
OuterRate = Annotated[float | Callable[[Any], Any], Range(0, LARGEST_FLOAT)]
# The steps of a round: a number, or a function of the round k = 0, 1, ... such as `ddl.qsr`.
Period = Annotated[int | Callable[[int], int], integers(1)]
ElasticRate = Annotated[float, Range(0, 2)]  # alpha; p alpha must be at most 2, otherwise the center diverges
Seconds = Annotated[float, Range(0, LARGEST_SECONDS)]


def check(option: str, value: Any, valid: Range) -> None:
  """Raise OptionError if a value is outside a range; accept traced numbers, whose value is unknown."""
  if value in valid:
    return
  if not isinstance(value, bool | str | int | float) and np.ndim(value) == 0 and hasattr(value, "dtype"):
    try:
      value = value.item()
    except TypeError:  # the number is traced by JAX
      return
    if value in valid:
      return
  raise OptionError(option, valid.condition(value), _text(value))


def check_all(annotation: Any, value: Any, option: str) -> None:
  """Check a value, or each element of a tuple, against the range of an annotation.

  None is always valid, and so is a function for an `OuterRate` or a `Period`. The annotations `bool` and `str` need a
  value of their type.

  Raises:
    OptionError: as `check` does.
  """
  if value is None or (annotation in (OuterRate, Period) and callable(value)):
    return
  if typing.get_origin(annotation) is tuple:
    if not isinstance(value, tuple | list):
      raise OptionError(option, "a tuple", _text(value))
    elements = typing.get_args(annotation)
    for element_type, element in zip(elements[:1] * len(value) if ... in elements else elements, value, strict=False):
      check_all(element_type, element, option)
  elif annotation is bool and not isinstance(value, bool | np.bool_):
    raise OptionError(option, "True or False", _text(value))
  elif annotation is str and not isinstance(value, str):
    raise OptionError(option, "a string", _text(value))
  elif valid := range_of(annotation) or NUMBERS.get(type(value)):
    check(option, value, valid)


def range_of(annotation: Any) -> Range | None:
  """Return the range of an annotation or of its type, or None if it is not numeric. `float | None` is numeric."""
  if typing.get_origin(annotation) is Annotated:
    valid = next((data for data in annotation.__metadata__ if isinstance(data, Range)), None)
    return valid or range_of(annotation.__origin__)
  if typing.get_origin(annotation) in (typing.Union, types.UnionType):
    return next(filter(None, map(range_of, typing.get_args(annotation))), None)
  return NUMBERS.get(annotation)


def is_static(annotation: Any) -> bool:
  """Return whether a setting determines a program's structure; all do except floats without the mark STATIC."""
  return plain(annotation) is not float or STATIC in getattr(annotation, "__metadata__", ())


def is_set(value: Any) -> bool:
  """Return whether a setting differs from 0; a traced one counts as nonzero. Programs may branch on this result."""
  return not isinstance(value, int | float) or value != 0


def check_fields(values: Any, prefix: str) -> None:
  """Check the fields of a dataclass by their annotations. prefix: text in front of a field's name in an error."""
  for key, annotation in typing.get_type_hints(type(values), include_extras=True).items():
    if key in values.__dataclass_fields__:
      check_all(annotation, getattr(values, key), f"{prefix}{key}")


@functools.cache
def settings_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
  """Return the keyword-only parameters of a factory with resolved annotations.

  Raises:
    ValueError: if an annotation cannot be evaluated, for example because it uses an undefined name.
  """
  parameters = inspect.signature(factory).parameters
  return {
    key: parameter.replace(annotation=resolved(factory, key, parameter.annotation))
    for key, parameter in parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
  }


def resolved(factory: Callable[..., Any], key: str, annotation: Any) -> Any:
  """Resolve the annotation of the parameter `key`, or of the return value if `key` is "return", from text to types.

  Raises as `settings_of` does.
  """
  names = getattr(inspect.unwrap(factory), "__globals__", {})
  holder = types.SimpleNamespace(__annotations__={key: annotation})
  try:
    return typing.get_type_hints(holder, names, include_extras=True)[key]
  except Exception as error:  # the user may have written any expression
    what = "the return value" if key == "return" else f"'{key}'"
    name = getattr(factory, "__name__", "the function")
    condition = f"a type that is defined or imported in the function's file ({type(error).__name__}: {error})"
    raise OptionError(f"{name}: the annotation of {what}", condition, repr(annotation)) from error


def checked(factory: Factory) -> Factory:
  """Make a factory reject keyword arguments outside their annotated ranges: `<factory>.<key> must be ...`.

  It also rejects arguments that do not have the type in ARGUMENTS, and computes `ByWorkers` defaults from the argument
  `workers`.
  """
  names = [*inspect.signature(factory).parameters]

  @functools.wraps(factory)
  def call(*args: Any, **settings: Any) -> Any:
    for name, value in {**dict(zip(names, args, strict=False)), **settings}.items():
      if name in names and name in ARGUMENTS and not all(hasattr(value, field) for field in ARGUMENTS[name][0]):
        raise OptionError(f"{factory.__name__}.{name}", ARGUMENTS[name][1], type(value).__name__)
    parameters = settings_of(factory)
    for key, value in settings.items():
      if key in parameters:
        check_all(parameters[key].annotation, value, f"{factory.__name__}.{key}")
    for key, parameter in parameters.items():
      if isinstance(parameter.default, ByWorkers) and key not in settings:
        if settings.get("workers") is None:
          raise OptionError(f"{factory.__name__}.workers", f"set (the default of {key} depends on it)", "None")
        settings[key] = parameter.default.value(settings["workers"])
    return factory(*args, **settings)

  return call  # pyright: ignore[reportReturnType]


def plain(annotation: Any) -> Any:
  """Return the annotation without its ranges, such as int or tuple[int, ...]; `OuterRate`: float, `Period`: int."""
  annotation = _plain(annotation)
  if typing.get_origin(annotation) is tuple:
    return tuple[*(element if element is ... else plain(element) for element in typing.get_args(annotation))]
  return annotation


def _plain(annotation: Any) -> Any:
  if annotation in (OuterRate, Period):
    return float if annotation == OuterRate else int
  return annotation.__origin__ if typing.get_origin(annotation) is Annotated else annotation


def _text(value: Any) -> str:
  value = value.item() if isinstance(value, np.generic) else value
  return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
