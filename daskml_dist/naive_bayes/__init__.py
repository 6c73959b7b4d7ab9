"""Naive Bayes classifiers, fitted in one pass over the rows."""

from __future__ import annotations

from daskml_dist.naive_bayes.bernoulli_nb import BernoulliNB
from daskml_dist.naive_bayes.complement_nb import ComplementNB
from daskml_dist.naive_bayes.gaussian_nb import GaussianNB
from daskml_dist.naive_bayes.multinomial_nb import MultinomialNB

__all__ = ["BernoulliNB", "ComplementNB", "GaussianNB", "MultinomialNB"]
