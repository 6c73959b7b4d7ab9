"""Docstrings of estimators: what a base class documents, its subclasses need not repeat.

A parameter such as `run` is documented once, in the docstring of the base class that reads it.
`inherit_documentation` adds its entry to the docstring of each estimator that has the parameter,
so that ``help``, an IDE and the reference show every parameter of every class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache

#: The title of a numpydoc section and its underline.
_TITLE = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def inherit_documentation(cls: type) -> None:
    """Add missing entries to a class's docstring: parameters of its constructor, and attributes.

    An entry is taken from the nearest base class that documents it, with the default of the
    class's constructor; attributes only from bases without a constructor, which speak of all
    their subclasses. Nothing is done for a class without a docstring, or for such a base.
    """
    if not cls.__doc__ or not _has_constructor(cls):
        return
    text = inspect.cleandoc(cls.__doc__)
    inherited: dict[str, str] = {}
    attributes: dict[str, str] = {}
    # From the farthest base to the nearest, whose entries override the others.
    for base in reversed(cls.__mro__[1:-1]):
        if base.__doc__ and base.__module__.startswith("daskml_dist."):
            inherited |= read_entries(base.__doc__, "Parameters")
            if not _has_constructor(base):
                attributes |= read_entries(base.__doc__, "Attributes")
    class_entries = read_entries(text, "Parameters")
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    # In the order of the constructor; other entries of the class come last.
    ordered_entries = {
        name: class_entries.get(name) or _with_default(inherited[name], parameter.default)
        for name, parameter in signature.parameters.items()
        if name in class_entries or name in inherited
    }
    text = _replace_section(text, "Parameters", {**ordered_entries, **class_entries})
    attributes |= read_entries(text, "Attributes")
    cls.__doc__ = _replace_section(text, "Attributes", attributes)


def _has_constructor(cls: type) -> bool:
    """Return whether a class has a constructor, defined or inherited."""
    return cls.__init__ is not object.__init__  # type: ignore[misc]


@cache  # the docstrings of base classes are read for each subclass
def read_entries(text: str, section: str) -> Mapping[str, str]:
    """Return the entries of a docstring's section, by each name that an entry documents."""
    _, _, body = _cut_out(inspect.cleandoc(text), section)
    entries = re.split(r"\n(?=\S)", body.strip("\n")) if body else []
    # One entry may document several names: "copy_X, max_iter : ...".
    return {name: entry for entry in entries for name in re.split(r" :|\n", entry)[0].split(", ")}


def _with_default(entry: str, default: object) -> str:
    """Return an entry of one parameter whose first line names a constructor's default."""
    head, line, description = entry.partition("\n")
    if ", " in head.partition(" :")[0] or " : " not in head:
        return entry  # documents several parameters, or has no type
    head = head.partition(", default=")[0]
    if default is not inspect.Parameter.empty:
        default_text = f'"{default}"' if isinstance(default, str) else repr(default)
        head += f", default={default_text}"
    return head + line + description


def _replace_section(text: str, section: str, entries: Mapping[str, str]) -> str:
    """Return a docstring with these entries as a section; a new one comes before the others."""
    if not entries:
        return text
    text_before, text_after, _ = _cut_out(text, section)
    body = "\n".join(dict.fromkeys(entries.values()))
    title = f"{section}\n{'-' * len(section)}"
    return f"{text_before.rstrip()}\n\n{title}\n{body}\n\n{text_after}".rstrip()


def _cut_out(text: str, section: str) -> tuple[str, str, str]:
    """Return the text before and after a section of a docstring, and the section's body.

    If there is no such section, it belongs before the others, attributes after parameters.
    """
    titles = list(_TITLE.finditer(text))
    ends = [*(title.start() for title in titles[1:]), len(text)]
    for title, end in zip(titles, ends, strict=False):
        if title[1] == section:
            return text[: title.start()], text[end:], text[title.end() : end]
    position = next((t.start() for t in titles if t[1] != "Parameters"), len(text))
    return text[:position], text[position:], ""
