"""Linear support vector machines, under scikit-learn's names."""

from daskml_dist.svm._liblinear import LinearSVC, LinearSVR

__all__ = ["LinearSVC", "LinearSVR"]
