"""An import of this module leaves all that is there out of each later look for garbage.

The process from which workers are forked imports it last: each would look through all modules
again and again, and copy their pages as it does.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
