"""Self-supervised image representations: every method is an aligning part plus a constraining part.

``__init__.pyi`` lists the public names. Each is imported when first used, because importing torch takes seconds.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
