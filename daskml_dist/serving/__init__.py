"""Serving: fitted models behind HTTP, by the Open Inference Protocol.

Nothing here is imported before somebody serves: msgspec, uvicorn, httptools and uvloop come with
the extra ``serve``.
"""

from __future__ import annotations
