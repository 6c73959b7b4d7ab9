"""Features from text, dicts and namespaces, blockwise and lazily."""

from __future__ import annotations

from daskml_dist.feature_extraction.count_vectorizer import CountVectorizer
from daskml_dist.feature_extraction.feature_hasher import FeatureHasher
from daskml_dist.feature_extraction.hashing_vectorizer import HashingVectorizer
from daskml_dist.feature_extraction.namespace_hasher import NamespaceHasher
from daskml_dist.feature_extraction.tfidf_transformer import TfidfTransformer
from daskml_dist.feature_extraction.tfidf_vectorizer import TfidfVectorizer

__all__ = [
    "CountVectorizer",
    "FeatureHasher",
    "HashingVectorizer",
    "NamespaceHasher",
    "TfidfTransformer",
    "TfidfVectorizer",
]
