"""Modules of PyTorch behind the model door."""
