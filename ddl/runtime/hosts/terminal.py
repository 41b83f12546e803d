"""Lines to the terminal, or to whoever still reads them."""

import contextlib
import sys


def tell(text: str) -> None:
  """Print a line on stderr, after what stdout has; not where the launcher that read them was killed."""
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr, flush=True)
