"""``python -m daskml_dist``: the commands of `daskml_dist.cli`."""

from __future__ import annotations

from daskml_dist.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
