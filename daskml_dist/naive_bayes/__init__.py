"""Naive Bayes classifiers, fitted in one pass over the rows."""

from __future__ import annotations

from daskml_dist.naive_bayes._base import GaussianNB
from daskml_dist.naive_bayes._discrete import (
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    MultinomialNB,
)

__all__ = ["BernoulliNB", "CategoricalNB", "ComplementNB", "GaussianNB", "MultinomialNB"]
