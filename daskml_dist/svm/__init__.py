"""Linear support vector machines, by the names of scikit-learn."""

from daskml_dist.svm.linear_svc import LinearSVC
from daskml_dist.svm.linear_svr import LinearSVR

__all__ = ["LinearSVC", "LinearSVR"]
