"""Code blocks of the pages, in order, with the pages' reasons for blocks that cannot run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

__all__ = ["PAGES", "ROOT", "Block", "blocks"]

ROOT = Path(__file__).resolve().parents[2]

#: Each page by its path, including the README and the page for contributors.
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
}

#: A fence with any indentation, its language, and a mark in the line above.
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n\s*\n?)?"
    r"^(?P<indent>[ \t]*)(?P<fence>```+|:::+)(?P<language>[^\n]*)\n"
    r"(?P<code>.*?)^(?P=indent)(?P=fence)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One block of code of a page.

    Attributes
    ----------
    line : int
        Number of its first line of code in the page.
    language : str
        Language named by its fence.
    code : str
    not_run : str or None
        Why it cannot run here, from ``<!-- not run: ... -->`` above it.
    """

    line: int
    language: str
    code: str
    not_run: str | None


def blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of a language in a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(
            text.count("\n", 0, match.start("code")) + 1,
            match["language"].strip(),
            dedent(match["code"]),
            match["why"],
        )
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in found if block.language == language]
