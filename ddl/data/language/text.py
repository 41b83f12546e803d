"""Next-token prediction over any text file, by bytes or by characters.

The default is CPython's own language reference, the standard library's `pydoc_data.topics`: some 460,000
characters on every machine, which depend on the version of Python (see the digest in the description).
"""

import hashlib
import platform

import numpy as np

from ddl.api import Data, Source
from ddl.data import formats, source
from ddl.ranges import Fraction, PositiveInt, checked


@checked
def text(*, path: str = "", level: str = "byte", length: PositiveInt = 64, validation: Fraction = 0.0) -> Data:
  """Windows of a text: x [length] int32 and the tokens that follow, y [length] int32.

  The last tenth of the text is the test set. Windows lie at stride `length`, and none crosses the cut.

  Args:
    path: a text file; "" is the corpus above.
    level: "byte" (256 tokens) or "char" (UTF-8 characters; meta["vocabulary"] holds them in token order).
    length: tokens per example.
    validation: share of the training windows to set apart.

  Raises:
    FileNotFoundError, ValueError: one line, for a missing, empty, undecodable or too short text, or another level.
  """
  if level not in ("byte", "char"):
    raise ValueError(f'level={level!r}; invalid: must be "byte" or "char"')
  content, name = _content(path)
  if not content:
    raise ValueError(f"{name} is empty")
  more = {}
  if level == "byte":
    tokens, num_outputs = np.frombuffer(content, np.uint8), 256
  else:
    try:
      characters = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), "<u4")
    except UnicodeDecodeError as error:
      where = f"{error.reason} at byte {error.start}"
      raise ValueError(f'{name} is not UTF-8 text ({where}); use level="byte"') from error
    vocabulary, tokens = np.unique(characters, return_inverse=True)
    num_outputs, more["vocabulary"] = len(vocabulary), "".join(map(chr, vocabulary))
  tokens = tokens.astype(np.int32)

  test_size = len(tokens) // 10
  if test_size < length + 1:
    raise ValueError(
      f"{name} has {len(tokens)} tokens, so its last tenth, the test set, holds no window of {length} + 1: "
      + (f"use length={test_size - 1} or less, or a longer text" if test_size > 1 else "use a longer text")
    )
  train, test = _windows(tokens[:-test_size], length), _windows(tokens[-test_size:], length)
  train, held_out = source.split(train, validation)
  digest = hashlib.sha256(content).hexdigest()[:12]
  description = f"{name}: {len(tokens):,} {'bytes' if level == 'byte' else 'characters'}, sha256 {digest}"
  meta = {"task": "language", "shape": (length,), "num_outputs": num_outputs, "description": description, **more}
  return Data(train, test, meta, held_out)


def _content(path: str) -> tuple[bytes, str]:
  if not path:
    from pydoc_data.topics import topics

    name = f"the language reference of Python {platform.python_version()} (pydoc_data.topics)"
    return "\n".join(topics[key] for key in sorted(topics)).encode("utf-8"), name
  content = source.content(source.existing(path, "FILE.txt"))
  formats.require_text(content[: formats.HEAD], path)
  return content, path


def _windows(tokens: np.ndarray, length: int) -> Source:
  count = (len(tokens) - 1) // length
  x = tokens[: count * length].reshape(count, length)  # views of one array, not copies
  y = tokens[1 : count * length + 1].reshape(count, length)
  return source.in_memory(x, y)
