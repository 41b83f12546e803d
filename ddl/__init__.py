"""ddl: distributed SGD variants as pure functions, trained in real runs and compared fairly.

The public names, listed in `__init__.pyi`, are imported on first use, so that the cost model does not import JAX.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
