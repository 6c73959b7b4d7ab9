"""Facts about the versions of packages that tests compare with."""

from __future__ import annotations

import sklearn
from sklearn.utils.fixes import parse_version

#: Whether scikit-learn is older than the version whose results and checks the tests expect.
OLD_SCIKIT_LEARN = parse_version(sklearn.__version__) < parse_version("1.8")
