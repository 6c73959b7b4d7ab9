"""Features from text, dicts and namespaces, computed block by block and lazily."""

from __future__ import annotations

from daskml_dist.feature_extraction.field_hasher import FieldHasher
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
    "FieldHasher",
    "HashingVectorizer",
    "NamespaceHasher",
    "TfidfTransformer",
    "TfidfVectorizer",
]
