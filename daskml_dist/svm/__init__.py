"""Linear support vector machines, by the names of scikit-learn."""

from daskml_dist.svm._liblinear import LinearSVC, LinearSVR

__all__ = ["LinearSVC", "LinearSVR"]
