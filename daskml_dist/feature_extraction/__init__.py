"""Features from text, dicts and namespaces, blockwise and lazily."""

from __future__ import annotations

from daskml_dist.feature_extraction.feature_hasher import FeatureHasher
from daskml_dist.feature_extraction.hashing_vectorizer import HashingVectorizer
from daskml_dist.feature_extraction.namespace_hasher import NamespaceHasher
from daskml_dist.feature_extraction.tfidf_transformer import TfidfTransformer

__all__ = ["FeatureHasher", "HashingVectorizer", "NamespaceHasher", "TfidfTransformer"]
