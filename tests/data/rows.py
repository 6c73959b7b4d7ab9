"""Small rows, as an array and as CSR, to be split into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

X = np.arange(12.0).reshape(4, 3)
DENSE_AND_SPARSE = pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
