"""Modules of PyTorch behind the interface of models."""
