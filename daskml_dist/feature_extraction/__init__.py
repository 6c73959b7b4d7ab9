"""Features from text, dicts and namespaces, blockwise and lazily."""

from __future__ import annotations

from daskml_dist.feature_extraction.hashing import FeatureHasher, NamespaceHasher
from daskml_dist.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)

__all__ = [
    "CountVectorizer",
    "FeatureHasher",
    "HashingVectorizer",
    "NamespaceHasher",
    "TfidfTransformer",
    "TfidfVectorizer",
]
