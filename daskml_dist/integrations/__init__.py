"""Other libraries whose own distributed training runs on the ranks of `run_together`.

Each module needs its library, on the client and on all workers: `xgboost`, `lightgbm`, `torch`.
"""

from __future__ import annotations

from daskml_dist.integrations import lightgbm, torch, xgboost

__all__ = ["lightgbm", "torch", "xgboost"]
