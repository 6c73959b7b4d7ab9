"""Maliciously crafted model files, and concurrent or failing writes."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

import daskml_dist
from daskml_dist.errors import ModelFileError
from daskml_dist.inference import read_manifest
from daskml_dist.inference.saved.archive import MANIFEST
from daskml_dist.inference.saved.safetensors_file import (
    _MANIFEST,
    _STATE,
    _compute_checksums,
    read_parts,
)
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import LabelEncoder

pytest.importorskip("safetensors", reason="safetensors is not installed")
pytest.importorskip("skops", reason="skops is not installed")

from safetensors.numpy import save

from tests.inference.test_saved import _members, _members_of, _with_facts, _written

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
INNER = "daskml_dist/estimator.skops"
Members = dict[str, bytes]


def summed(members: Members, **facts: Any) -> bytes:
    """Return an archive with correct checksums."""
    sums = {n: hashlib.sha256(d).hexdigest() for n, d in members.items() if n != MANIFEST}
    return _written(_with_facts(members, sha256=sums, **facts))


def twice(members: Members) -> bytes:
    """Return an archive with two different members of one name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's own warning about it
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(INNER, b"another")
    return buffer.getvalue()


def overlapping(members: Members) -> bytes:
    """Return an archive that declares far more bytes than it has."""
    data = bytearray(summed(members))
    at = data.rindex(b"PK\x01\x02") + 24  # the size of the directory's last entry
    data[at : at + 4] = (10**9).to_bytes(4, "little")
    return bytes(data)


def inner(change: Callable[[Members], Members], how: int = zipfile.ZIP_STORED) -> Any:
    def changed(members: Members) -> bytes:
        parts = change(_members_of(members[INNER]))
        return summed(members | {INNER: _written(parts, how)})

    return changed


def bomb(parts: Members) -> Members:
    """Return a sparse matrix in place of an array, a thousand times as large in memory."""
    buffer = io.BytesIO()
    sparse.save_npz(buffer, sparse.csr_matrix((1, 9 * 10**6)) + sparse.eye(1, 9 * 10**6))
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more", bytes(10**8))
    return parts | {"a.npy": buffer.getvalue()}


def huge(members: Members) -> bytes:
    """Return arrays whose headers declare a petabyte."""
    head = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**14,)}
    np.lib.format.write_array_header_1_0(head, header)
    return of_arrays(members, head.getvalue())


def pickled(members: Members) -> bytes:
    """Return object arrays, which NumPy would unpickle."""

    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, ("was_here",)

    data = io.BytesIO()
    np.save(data, np.array([Bad()], dtype=object), allow_pickle=True)
    return of_arrays(members, data.getvalue())


def _list(number: int, content: list[Any]) -> dict[str, Any]:
    return {
        "__class__": "list", "__module__": "builtins", "__loader__": "ListNode",
        "content": content, "__id__": number,
    }  # fmt: skip


def _with_part(part: dict[str, Any]) -> Any:
    def change(parts: Members) -> Members:
        schema = json.loads(parts["schema.json"])
        schema["content"]["content"]["more_"] = part
        return parts | {"schema.json": json.dumps(schema).encode()}

    return inner(change)


def doubled(times: int) -> dict[str, Any]:
    """Return lists, each of which contains the previous one twice."""
    part = _list(900_000, [])
    for number in range(900_000, 900_000 + times):
        part = _list(number + 1, [part, _list(number, [])])
    return part


def nested(times: int) -> dict[str, Any]:
    part = _list(900_000, [])
    for number in range(times):
        part = _list(900_001 + number, [part])
    return part


def of_arrays(members: Members, data: bytes) -> bytes:
    return summed({n: data if n.endswith(".npy") else d for n, d in members.items()})


def named_twice(members: Members) -> bytes:
    same = json.loads(members[MANIFEST])["shared"]
    return summed(members, shared={**same, "9.npy": next(iter(same.values()))})


ATTACKS: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "two members of a name": (twice, "two members have the same name|a wrong checksum"),
    "members that overlap": (overlapping, "overlap"),
    "compressed within": (inner(lambda parts: parts, zipfile.ZIP_DEFLATED), "compressed members"),
    "a bomb within": (inner(bomb), "would expand to"),
    "a petabyte": (huge, "cannot be read"),
    "pickles": (pickled, "cannot be read .*allow_pickle"),
    "paths of elsewhere": (
        inner(lambda parts: parts | {"../../was_here": b"1", "/was_here": b"1"}), ""
    ),
    "an array for many": (named_twice, "uses an array twice"),
    "arrays of nowhere": (lambda m: summed(m, shared={"1.npy": "no"}), "are missing"),
    "no arrays": (lambda m: summed(m, shared={}), "cannot be read"),
    "no mapping": (lambda m: summed(m, shared=[1]), "are missing"),
    "versions that are none": (lambda m: summed(m, versions=None), "without versions"),
    "numbers for versions": (
        lambda m: summed(m, versions={"scikit-learn": 1}), "without versions"
    ),
    "another estimator": (
        lambda m: summed(m, estimator="daskml_dist.linear_model.Ridge"), "declares a .*Ridge"
    ),
    "lists doubled forty times": (_with_part(doubled(40)), "are nested more deeply"),
    "lists doubled five times": (_with_part(doubled(5)), ""),
    "a list of itself": (_with_part(_list(900_000, [_list(900_000, [])])), "holds itself"),
    "lists within lists": (_with_part(nested(400)), "cannot be read"),
    "its twin for it": (lambda m: summed(m, twin=False), ""),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_crafted_archives_are_refused(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.skops"
    LogisticRegression().fit(X, Y).save(path)
    change, message = ATTACKS[attack]
    path.write_bytes(change(_members(path)))
    if message:
        with pytest.raises(ModelFileError, match=message):
            daskml_dist.load(path)
    else:
        found = daskml_dist.load(path)  # no member is larger than declared
        assert type(found).__name__ == "LogisticRegression"
    assert [one.name for one in tmp_path.iterdir()] == ["a.skops"]
    assert not any(one.exists() for one in (Path("/was_here"), tmp_path.parents[1] / "was_here"))


def long_texts(state: str, tensors: dict[str, Any]) -> None:
    """Return offsets that alternate, so that each string spans all of them."""
    name = next(one for one in tensors if one.endswith(".ends"))
    n = len(tensors[name.replace(".ends", ".utf8")])
    tensors[name] = np.array([n, 0] * 1000, dtype=np.int64)


def wide(state: str) -> str:
    parsed = json.loads(state)
    parsed["state"]["classes_"]["dtype"] = "<U500000000"
    return json.dumps(parsed)


def other_dtype(state: str) -> str:
    parsed = json.loads(state)
    parsed["state"]["theta_"]["dtype"] = "|V1000000000"
    return json.dumps(parsed)


@pytest.mark.parametrize(
    ("of_tensors", "of_state", "message"),
    [
        (long_texts, None, "which are not those of texts"),
        (None, wide, "far wider than its texts"),
        (None, other_dtype, "which no array of a file is"),
    ],
)
def test_crafted_tensors_are_refused(
    of_tensors: Any, of_state: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    GaussianNB().fit(X, np.where(Y, "yes", "no")).save(path)
    manifest, state, tensors = read_parts(path.read_bytes(), "it")
    if of_tensors is not None:
        of_tensors(state, tensors)
    if of_state is not None:
        state = of_state(state)
    manifest["sha256"] = _compute_checksums(tensors, state)
    path.write_bytes(save(tensors, {_MANIFEST: json.dumps(manifest), _STATE: state}))
    with pytest.raises(ModelFileError, match=message):
        daskml_dist.load(path)


# --- shared arrays, labels and names -----------------------------------------------------------


def test_arrays_of_the_twin_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    rows = np.random.default_rng(0).normal(size=(50, 800))
    model = LogisticRegression().fit(rows, np.arange(50) % 10)
    model.save(path)
    assert path.stat().st_size < 1.7 * model.coef_.nbytes + 100_000  # not twice
    assert_array_equal(daskml_dist.load(path).predict_proba(rows), model.predict_proba(rows))
    members = _members(path)
    manifest = json.loads(members[MANIFEST])
    assert manifest["format"] == 2
    # The older format: all arrays in both places, without a record of sharing.
    parts = _members_of(members[INNER])
    parts |= {name: members[at] for name, at in manifest.pop("shared").items()}
    members |= {INNER: _written(parts), MANIFEST: json.dumps(manifest | {"format": 1}).encode()}
    path.write_bytes(summed(members))
    assert_array_equal(daskml_dist.load(path).predict_proba(rows), model.predict_proba(rows))


@pytest.mark.parametrize("suffix", [".skops", ".safetensors"])
def test_labels_without_a_json_type(suffix: str, tmp_path: Path) -> None:
    days = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]")
    for labels, expected in (
        (np.array([1.0, np.inf, np.nan]), [1.0, "inf", None]),
        (days, ["2026-01-01", "2026-01-02"]),
        (np.array(["a\ud800", "b"]), ["a\ud800", "b"]),
    ):
        model = LabelEncoder().fit(labels)
        model.save(tmp_path / f"a{suffix}")
        assert read_manifest(tmp_path / f"a{suffix}")["outputs"]["classes"] == expected
        found = daskml_dist.load(tmp_path / f"a{suffix}")
        assert_array_equal(found.transform(labels), [0, 1, 2][: len(labels)])


# --- writing -----------------------------------------------------------------------------------


def test_concurrent_readers_find_complete_files(tmp_path: Path) -> None:
    """Threads write one path while it is read through a link, which is kept."""
    path, link = tmp_path / "a.skops", tmp_path / "link.skops"
    models = [LogisticRegression(C=one).fit(X, Y) for one in (0.1, 1.0)]
    known = [model.coef_.tobytes() for model in models]
    models[0].save(path)
    link.symlink_to(path)
    failures: list[BaseException] = []

    def write(model: Any) -> None:
        try:
            for _ in range(3):
                model.save(link)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(model,)) for model in models]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        assert daskml_dist.load(link).coef_.tobytes() in known
    assert not failures
    assert link.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.skops", "link.skops"]


def test_a_full_disk_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the error occurs only when the file is flushed to disk."""
    path = tmp_path / "a.skops"
    GaussianNB().fit(X, Y).save(path)
    before = path.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFileError, match=r"Cannot write .*No space left"):
        GaussianNB(var_smoothing=1e-3).fit(X, Y).save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["a.skops"]
