"""The built site: properties that the sources do not show.

The variable ``DASKML_DIST_SITE`` names the folder of the pages that sphinx-build has written;
`.ci/run` sets it after the step that builds them. Without it these tests are skipped.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT

SITE = Path(os.environ.get("DASKML_DIST_SITE", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("DASKML_DIST_SITE"), reason="DASKML_DIST_SITE names no built site"
)
#: Of a parameter in the heading of a page: its name.
_PARAMETER = re.compile(r'<em class="sig-param">.*?<span class="n"><span class="pre">(\w+)</span>')


def _public_names() -> dict[str, Any]:
    """Return each public class and function by its name in the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "_ext"))
        reference = importlib.import_module("reference_pages")
    subpackages = [subpackage for some in reference.groups().values() for subpackage in some]
    return {
        ".".join(part for part in ("daskml_dist", subpackage, name) if part): getattr(
            reference.module_of(subpackage), name
        )
        for subpackage in subpackages
        for name in reference.names_of(subpackage)
    }


def _page(name: str) -> str:
    return (SITE / f"{name}.html").read_text(encoding="utf-8")


def test_pages_of_classes_show_the_constructor_s_parameters() -> None:
    looked_at = 0
    for name, documented in _public_names().items():
        if not inspect.isclass(documented) or issubclass(documented, BaseException):
            continue
        heading = re.search(
            rf'<dt class="sig sig-object py" id="{re.escape(name)}">.*?</dt>',
            _page(f"reference/{name}"),
            re.DOTALL,
        )
        assert heading is not None, name
        shown = _PARAMETER.findall(heading[0].replace("\n", ""))
        if not getattr(documented, "_is_protocol", False):
            assert shown == list(inspect.signature(documented).parameters), name
            looked_at += 1
    assert looked_at > 150


def test_every_page_has_logo_favicon_and_copy_buttons() -> None:
    for name in ("index", "guide", "reference/daskml_dist.linear_model.SGDClassifier"):
        page = _page(name)
        assert page.count("logo.svg") >= 2, name  # in the bar, and for the browser's tab
        assert "copybutton.js" in page
    assert "sd-card" in _page("index")


def test_pages_of_classes_lead_to_examples_and_source() -> None:
    page = _page("reference/daskml_dist.linear_model.SGDClassifier")
    assert "Examples that use SGDClassifier" in page
    assert "../scripts/quickstart.html" in page
    assert "_modules/" in page


def test_the_search_finds_typical_terms() -> None:
    """Sphinx's index contains stems, each of which must lead to the right page."""
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    names = index["docnames"]
    for stem, page in (
        ("hyperparamet", "model_selection"),
        ("imbal", "tuning"),
        ("anomali", "mixture"),  # of anomaly and anomalies
        ("pickl", "export"),
    ):
        pages = set()
        for kind in ("terms", "titleterms"):
            found = index[kind].get(stem, [])
            pages |= {names[number] for number in (found if isinstance(found, list) else [found])}
        assert page in pages, (stem, pages)
