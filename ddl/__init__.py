"""ddl: variants of distributed SGD as pure functions, with tools to train with them and to compare them fairly.

The public names, listed in `__init__.pyi`, are imported on first use. So the cost model runs without importing JAX.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
