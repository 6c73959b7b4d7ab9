"""What tests must know of the versions of what they compare with."""

from __future__ import annotations

import sklearn
from sklearn.utils.fixes import parse_version

#: Whether scikit-learn is older than its results and checks that tests are written for.
OLD_SCIKIT_LEARN = parse_version(sklearn.__version__) < parse_version("1.8")
