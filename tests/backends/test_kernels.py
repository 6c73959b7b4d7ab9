"""CUDA kernels without a GPU: they compile without spills, and an emulation by g++ checks them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends import kernels
from daskml_dist.backends.kernels.usage import ARCHITECTURES, compiler, usage
from daskml_dist.losses import LOSSES
from daskml_dist.optimizers import OPTIMIZERS
from tests.cuda_emulation import build, library_of, run
from tests.quick import quick

RTOL = {"float32": 3e-6, "float64": 1e-13, "float16": 3e-6, "bfloat16": 3e-6}
DTYPES = tuple(RTOL)

needs_nvrtc = pytest.mark.skipif(
    compiler() is None, reason="no NVRTC here: pip install nvidia-cuda-nvrtc"
)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


# --- shapes ----------------------------------------------------------------------------------


def test_each_loss_with_steps_of_rows_has_a_kernel():
    assert set(kernels.LOSSES) == LOSSES.keys() - {"tweedie"}


def _versions(dtype):
    """A number of features, and an alignment, for each version of the gradient's kernel."""
    found = {}
    for alignment, d in itertools.product((16, 8, 4, 2), range(1, 2050)):
        teams = kernels._teams(d, dtype, alignment)
        if teams is not None:
            assert teams.lanes * teams.chunks * teams.vector >= d
            assert d % teams.vector == 0
            assert 1 <= teams.rows <= teams.lanes
            found.setdefault(teams, (d, alignment))
    return list(found.values())


@pytest.mark.parametrize(("dtype", "most"), [*zip(DTYPES, (2048, 1024, 2048, 2048), strict=True)])
def test_rows_are_covered_up_to_a_width(dtype, most):
    assert _versions(dtype)
    assert kernels.launch("linear_gradient", 9, most, dtype, 132) is not None
    assert kernels.launch("linear_gradient", 9, 2 * most + 1, dtype, 132) is None
    with pytest.raises(ValueError, match="no kernel for rows"):
        kernels.options("linear_gradient", dtype, d=2 * most + 1)


def test_grids_are_bounded_and_never_empty():
    for function in itertools.chain(*kernels.FUNCTIONS.values()):
        for n in (0, 1, 10**10):
            launch = kernels.launch(function, n, 100, "float32", 132, k=10)
            assert 1 <= launch.grid <= 8 * 132
            assert launch.shared <= 48 * 1024


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="loss='tweedie'"):
        kernels.options("linear_gradient", "float32", loss="tweedie")
    with pytest.raises(ValueError, match="function='nothing'"):
        kernels.launch("nothing", 1, 1, "float32", 1)


# --- compiling -------------------------------------------------------------------------------


def _assert_no_local_memory(name, architecture, dtype, **chosen):
    options = kernels.options(name, dtype, **chosen)
    found = usage(name, options, architecture)
    assert found.keys() == set(kernels.FUNCTIONS[name])
    for function, used in found.items():
        assert used.spills == used.stack == 0, (function, architecture, options, used)


@needs_nvrtc
@pytest.mark.parametrize("architecture", quick(ARCHITECTURES, "sm_100"))
def test_kernels_compile_without_spills(architecture):
    check = functools.partial(_assert_no_local_memory, architecture=architecture)
    check("linear_gradient", dtype="float32", d=512, loss="log_loss", result="float32")
    check("linear_gradient", dtype="float32", d=2048, loss="log_loss")
    check("linear_gradient", dtype="bfloat16", d=512, loss="gamma")
    check("choose_rows", dtype="float32")
    check("softmax_gradient", dtype="float32", k=10)
    check("optimizer_updates", dtype="float32", optimizer="adam", result="float32")
    check("csr_gradient", dtype="float32", loss="log_loss", result="float32")
    check("csr_gradient", dtype="float64", loss="log_loss", result="float64")
    check("csr_adagrad", dtype="float32", result="float32")
    check("kmeans", dtype="float32", d=100, k=64)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_compiles_without_spills(architecture, dtype):
    for d, alignment in _versions(dtype):
        chosen = {"d": d, "alignment": alignment, "loss": "log_loss"}
        _assert_no_local_memory("linear_gradient", architecture, dtype, **chosen)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_everything_else_compiles_without_spills(architecture):
    check = functools.partial(_assert_no_local_memory, architecture=architecture)
    for dtype, loss in itertools.product(DTYPES, kernels.LOSSES):
        check("linear_gradient", dtype=dtype, d=512, loss=loss, result="float32")
    for dtype in ("float32", "float64"):
        for loss, index in itertools.product(kernels.LOSSES, ("int32", "int64")):
            check("csr_gradient", dtype=dtype, loss=loss, result=dtype, index=index)
        check("choose_rows", dtype=dtype)
        check("csr_adagrad", dtype=dtype, result=dtype)
        for k in (2, 10, 1000):
            check("softmax_gradient", dtype=dtype, k=k)
        for optimizer in OPTIMIZERS:
            check("optimizer_updates", dtype=dtype, optimizer=optimizer)
    for dtype, d, k in itertools.product(DTYPES, (100, 2000), (1, 64, 96, 1000)):
        check("kmeans", dtype=dtype, d=d, k=k)


# --- emulation -------------------------------------------------------------------------------


class _Guarded:
    """Arrays amid bytes of 0xff (NaN as floats, -1 as integers), which must stay so."""

    def __init__(self):
        self._buffers = []

    def __call__(self, array):
        array = np.ascontiguousarray(array)
        buffer = np.full(array.nbytes + 1024, 0xFF, dtype=np.uint8)
        start = 512 - buffer.ctypes.data % 64
        inner = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        inner[...] = array
        self._buffers.append((buffer, start, start + array.nbytes))
        return inner

    def unset(self, shape, dtype=np.float64):
        """An array that a kernel must fill."""
        guarded = self(np.empty(shape, dtype))
        guarded.view(np.uint8)[...] = 0xFF
        return guarded

    def check(self):
        for buffer, start, stop in self._buffers:
            assert (buffer[:start] == 0xFF).all()
            assert (buffer[stop:] == 0xFF).all()


@pytest.fixture
def guarded():
    """Puts arrays amid sentinels, and checks these in the end."""
    guarded = _Guarded()
    yield guarded
    guarded.check()


def _stored(X, dtype):
    """X in a type that NumPy may lack, and its values in float64."""
    if dtype != "bfloat16":
        X = X.astype(dtype)
        return X, X.astype(np.float64)
    bits = (X.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _problem(loss, n, d, dtype, seed=0):
    rng = np.random.default_rng(seed)
    X, values = _stored(rng.normal(size=(n, d)), dtype)
    arithmetic = "float64" if dtype == "float64" else "float32"
    if loss.kind == "classification":
        y = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    else:
        y = rng.gamma(2.0, size=n)
    w = rng.normal(size=d + 1) / np.sqrt(d)
    weight = rng.random(n)
    return X, values, *(each.astype(arithmetic) for each in (y, w, weight))


def _truth(loss, values, y, w, weight, intercept):
    values, y, w = values.astype(float), y.astype(float), w.astype(float)
    d = values.shape[1]
    losses, g = loss.value_and_gradient(y, values @ w[:d] + (w[d] if intercept else 0))
    if weight is not None:
        losses, g = losses * weight, g * weight
    gradient = values.T @ g
    scale = np.abs(values).T @ np.abs(g)  # sums that cancel are exact up to their terms
    if intercept:
        gradient, scale = np.append(gradient, g.sum()), np.append(scale, np.abs(g).sum())
    return losses.sum(), gradient, scale


def _check_linear_gradient(
    guarded, loss, d, dtype, *, weighted, chosen, intercept, result="float64", alignment=16, n=None
):
    loss = LOSSES[loss]()
    options = kernels.options(
        "linear_gradient", dtype, d=d, loss=loss.name, result=result, alignment=alignment
    )
    library = build("linear_gradient", options)
    teams = kernels._teams(d, dtype, alignment)
    # Two blocks, more than two rounds, and rows left over.
    n = 2 * 2 * 8 * (32 // teams.lanes) * teams.rows + 5 if n is None else n
    launch = replace(kernels.launch("linear_gradient", n, d, dtype, 2, alignment=alignment), grid=2)
    X, values, y, w, weight = _problem(loss, n, d, dtype)
    w, weight = w[: d + intercept], weight if weighted else None
    rows, addresses, count, given = guarded(X), None, None, n
    if chosen:  # rows in another order, whose number the device knows
        order = np.random.default_rng(1).permutation(n)
        addresses = guarded((rows.ctypes.data + order * rows.strides[0]).astype(np.uint64))
        values, count, rows, given = values[order], guarded(np.array([float(n)])), None, 10**9
    arrays = rows, addresses, guarded(y), guarded(weight) if weighted else None, guarded(w)
    partials = guarded.unset((launch.grid, d + 2))
    numbers = given, d, int(intercept), (*loss.parameters, 0.0)[0]
    run(library, "linear_gradient", launch, *arrays, partials, *numbers, count)
    expected, gradient, scale = _truth(loss, values, y, w, weight, intercept)
    rtol = RTOL[dtype] if result == "float64" else RTOL["float32"]
    summing = kernels.launch("sum_partials", launch.grid, d, dtype, 2)
    for add in (0, 1):
        out, total = guarded(np.ones(d + intercept, result)), guarded.unset(1)
        numbers = launch.grid, d, int(intercept), add
        run(library, "sum_partials", summing, partials, out, total, *numbers)
        assert total[0] == pytest.approx(expected, rel=20 * rtol)
        off = np.abs(out - add - gradient) / (rtol * (20 * scale + 1))
        assert (off <= 1).all(), off.max()


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_losses_of_rows(dtype):
    entries = "".join(
        f"void {loss}(const A *y, const A *raw, double parameter, A *values, A *slopes, int n) {{\n"
        f"    for (int i = 0; i < n; ++i) slopes[i] = "
        f"loss::{loss}(y[i], raw[i], parameter, values[i]);\n}}\n"
        for loss in kernels.LOSSES
    )
    text = kernels.source("csr_gradient") + f'namespace host {{\nextern "C" {{\n{entries}}}\n}}\n'
    library = library_of(text, kernels.options("csr_gradient", dtype))
    raws = np.concatenate([np.linspace(-20, 20, 81), [-1e-9, 1e-9, 0.1, 1.1, np.nan]])
    for name in kernels.LOSSES:
        loss = LOSSES[name]()
        targets = [-1, 1] if loss.kind == "classification" else [0.5, 1.0, 4.0]
        y, raw = (each.ravel().astype(dtype) for each in np.meshgrid(targets, raws))
        values, slopes = np.empty_like(raw), np.empty_like(raw)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (y, raw, values, slopes)]
        parameter = ctypes.c_double((*loss.parameters, 0.0)[0])
        library[name](*pointers[:2], parameter, *pointers[2:], len(raw))
        expected = loss.value_and_gradient(y, raw)
        np.testing.assert_allclose(values, expected[0], rtol=RTOL[dtype], err_msg=name)
        shown = ~np.isnan(raw)
        np.testing.assert_allclose(slopes[shown], expected[1][shown], rtol=RTOL[dtype])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("loss", kernels.LOSSES)
def test_gradient_of_each_loss(loss, guarded):
    both = {"weighted": True, "chosen": True, "intercept": True}
    _check_linear_gradient(guarded, loss, 28, "float64", **both)


@needs_compiler
@pytest.mark.parametrize("d", [1, 28, 100, 513, 2048])
def test_gradient_at_each_width(d, guarded):
    every = list(itertools.product((0, 1), repeat=3))
    for weighted, chosen, intercept in every if d == 28 else (every[0], every[-1]):
        how = {"weighted": weighted, "chosen": chosen, "intercept": intercept}
        _check_linear_gradient(guarded, "log_loss", d, "float32", **how)


@needs_compiler
@pytest.mark.parametrize(
    ("d", "dtype", "alignment"),
    [(100, "float16", 16), (48, "bfloat16", 16), (28, "float32", 4), (1024, "float64", 16)],
)
def test_gradient_of_each_dtype(d, dtype, alignment, guarded):
    chosen = {"weighted": True, "chosen": True, "intercept": True, "alignment": alignment}
    _check_linear_gradient(guarded, "squared_error", d, dtype, result="float32", **chosen)


@needs_compiler
@pytest.mark.parametrize("n", [0, 1])
def test_gradient_of_few_rows(n, guarded):
    chosen = {"weighted": True, "chosen": True, "intercept": True}
    _check_linear_gradient(guarded, "log_loss", 28, "float64", n=n, **chosen)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_every_version(dtype, guarded):
    for d, alignment in _versions(dtype):
        chosen = {"weighted": True, "chosen": True, "intercept": True, "alignment": alignment}
        _check_linear_gradient(guarded, "log_loss", d, dtype, **chosen)


@needs_compiler
def test_a_row_that_is_not_a_number_shows(guarded):
    options = kernels.options("linear_gradient", "float64", d=28, loss="log_loss")
    library = build("linear_gradient", options)
    X, _, y, w, _ = _problem(LOSSES["log_loss"](), 5, 28, "float64")
    X[3, 7] = np.nan
    launch = kernels.launch("linear_gradient", 5, 28, "float64", 1)
    partials = guarded.unset((launch.grid, 30))
    arrays = guarded(X), None, guarded(y), None, guarded(w)
    run(library, "linear_gradient", launch, *arrays, partials, 5, 28, 1, 0.0, None)
    assert np.isnan(partials[:, -1].sum())


#: Of chosen rows: block, first row, count.
RUNS = [(1, 0, 70), (0, 6, 1), (1, 99, 1), (0, 0, 3), (0, 2, 0), (1, 40, 33)]
#: Where the first of them goes, and entries behind the last that stay as they are.
BEFORE, BEHIND = 5, 2


def _picked(arrays):
    """The runs' rows of one array for each block."""
    return np.concatenate([arrays[block][row : row + count] for block, row, count in RUNS])


def _choose_rows(guarded, function, dtype, where, chosen, targets, *row_bytes):
    """Run a kernel that chooses rows: targets and weights, `targets` being each block's two."""
    counts = np.array([count for _, _, count in RUNS])
    at = BEFORE + np.cumsum(counts) - counts
    table = np.array([(b, row, a, n) for (b, row, n), a in zip(RUNS, at, strict=True)], np.int32)
    found = [guarded(np.full(len(chosen), 1, dtype)) for _ in range(2)]
    weighted = targets[0][1] is not None
    parts = [(*w, *t) for w, t in zip(where, targets, strict=True)]
    table_of = [[0 if a is None else a.ctypes.data for a in part] for part in parts]
    launch = replace(kernels.launch(function, len(RUNS), 1, dtype, 1), grid=1)
    library = build("choose_rows", kernels.options("choose_rows", dtype))
    arrays = guarded(np.array(table_of, np.uint64)), guarded(table), chosen, found[0]
    weights = found[1] if weighted else None
    run(library, function, launch, *arrays, weights, len(RUNS), *row_bytes)
    for k in range(1 + weighted):
        expected = [1] * BEFORE + [*_picked([t[k] for t in targets])] + [1] * BEHIND
        np.testing.assert_array_equal(found[k], expected)


def _targets(guarded, sizes, dtype, weighted):
    rng = np.random.default_rng(1)
    return [
        (guarded(rng.random(n).astype(dtype)), guarded(rng.random(n).astype(dtype)))
        if weighted
        else (guarded(rng.random(n).astype(dtype)), None)
        for n in sizes
    ]


@needs_compiler
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chosen_rows(dtype, weighted, guarded):
    d, sizes = 3, (7, 100)
    blocks = [guarded(np.random.default_rng(0).normal(size=(n, d))) for n in sizes]
    chosen = guarded(np.full(BEFORE + sum(n for *_, n in RUNS) + BEHIND, 1, np.uint64))
    targets = _targets(guarded, sizes, dtype, weighted)
    _choose_rows(guarded, "choose_rows", dtype, [(X,) for X in blocks], chosen, targets, d * 8)
    rows = [(ctypes.c_double * d).from_address(int(at)) for at in chosen[BEFORE:-BEHIND]]
    np.testing.assert_array_equal(rows, _picked(blocks))


def _csr_parts(guarded, X, index):
    return guarded(X.data), guarded(X.indices.astype(index)), guarded(X.indptr.astype(index))


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chosen_csr_rows(dtype, guarded):
    d, sizes = 12, (7, 100)
    blocks = [sparse.random_array((n, d), density=0.3, format="csr", rng=n) for n in sizes]
    blocks = [X.astype(dtype) for X in blocks]
    where = [_csr_parts(guarded, X, np.int32) for X in blocks]
    chosen = guarded(np.full((BEFORE + sum(n for *_, n in RUNS) + BEHIND, 3), 1, np.uint64))
    targets = _targets(guarded, sizes, dtype, weighted=True)
    _choose_rows(guarded, "choose_csr_rows", dtype, where, chosen, targets)
    assert (chosen[:BEFORE] == 1).all()
    assert (chosen[-BEHIND:] == 1).all()
    expected = _picked([X.toarray() for X in blocks])
    for (data, indices, count), row in zip(chosen[BEFORE:-BEHIND].tolist(), expected, strict=True):
        found, entry = np.zeros(d), ctypes.c_float if dtype == "float32" else ctypes.c_double
        columns = (ctypes.c_int * count).from_address(indices) if count else []
        found[list(columns)] = (entry * count).from_address(data) if count else []
        np.testing.assert_array_equal(found, row)


@needs_compiler
@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [(33, 2, "float32"), (67, 10, "float64"), (0, 100, "float32"), (19, 100, "float32")],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_softmax(n, k, weighted, dtype, guarded):
    rng = np.random.default_rng(0)
    before = (3 * rng.normal(size=(n, k))).astype(dtype)
    codes = rng.integers(k, size=n).astype(np.int32)
    weight = rng.random(n).astype(dtype) if weighted else None
    library = build("softmax_gradient", kernels.options("softmax_gradient", dtype, k=k))
    raw, losses = guarded(before), guarded.unset(n, dtype)
    launch = replace(kernels.launch("softmax_gradient", n, 1, dtype, 1, k=k), grid=2)
    arrays = raw, guarded(codes), guarded(weight) if weighted else None, losses
    run(library, "softmax_gradient", launch, *arrays, n, k)
    values, gradient = LOSSES["log_loss"]().value_and_gradient(codes, before.astype(float))
    weight = np.ones(n) if weight is None else weight
    np.testing.assert_allclose(losses, values * weight, atol=10 * RTOL[dtype])
    np.testing.assert_allclose(raw, gradient * weight[:, None], atol=10 * RTOL[dtype])


@needs_compiler
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_optimizers_are_numpys_to_the_last_bit(name, dtype, guarded):
    optimizer, n, rows, l2 = OPTIMIZERS[name](), 300, 7.0, 0.01
    options = kernels.options("optimizer_updates", dtype, optimizer=name, result=dtype)
    library = build("optimizer_updates", options)
    launch = replace(kernels.launch("optimizer_update", n, 1, dtype, 1), grid=1)
    rng = np.random.default_rng(0)
    for l1, penalised in ((0.0, n), (0.05, n), (0.0, n - 1)):
        w = rng.normal(size=n).astype(dtype)
        slots = optimizer.init(w)
        if name == "nag":
            slots["scale"] = rng.uniform(0.5, 2, n).astype(dtype)
        ours, state = guarded(w), [guarded(slot) for slot in slots.values()]
        state += [None] * (3 - len(state))
        for step in (1, 2, 3):
            sums = rng.normal(size=n).astype(dtype)
            numbers = kernels.optimizer_numbers(optimizer, rows, 0.1, step)
            on_device = None
            if step == 2:
                on_device, numbers = guarded(np.array(numbers)), (np.nan,) * len(numbers)
            run(
                library, "optimizer_update", launch, ours, guarded(sums), *state,
                n, penalised, l1, l2, *numbers, on_device,
            )  # fmt: skip
            grad = sums / rows
            grad[:penalised] += l2 * w[:penalised]
            optimizer.update(w, grad, slots, 0.1, step, l1)
        np.testing.assert_array_equal(ours, w)
        for mine, slot in zip(state, slots.values(), strict=False):
            np.testing.assert_array_equal(mine, slot)
        assert not l1 or name == "adamw" or (w == 0).any()


@needs_compiler
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_l1_spares_what_is_not_penalised(name, guarded):
    optimizer, n = OPTIMIZERS[name](), 40
    options = kernels.options("optimizer_updates", "float32", optimizer=name, result="float32")
    library = build("optimizer_updates", options)
    launch = kernels.launch("optimizer_update", n, 1, "float32", 1)
    rng = np.random.default_rng(0)
    w = rng.normal(size=n).astype("float32")
    l1 = np.where(np.arange(n) < 30, 0.3, 0.0).astype("float32")
    slots = optimizer.init(w)
    ours, state = guarded(w), [guarded(slot) for slot in slots.values()]
    state += [None] * (3 - len(state))
    for step in (1, 2):
        grad = rng.normal(size=n).astype("float32")
        arrays = ours, guarded(grad), *state
        for rows in (1.0, 0.0):  # a step of no rows changes nothing
            numbers = kernels.optimizer_numbers(optimizer, rows, 0.1, step)
            run(library, "optimizer_update", launch, *arrays, n, 30, 0.3, 0.0, *numbers, None)
        optimizer.update(w, grad, slots, 0.1, step, l1)
    np.testing.assert_allclose(ours, w, rtol=1e-6, atol=1e-8)
    assert (w[30:] != 0).all()


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "index", "chosen"),
    [("float32", "int32", True), ("float64", "int64", True), ("float32", "int32", False)],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_csr_gradient_and_adagrad(dtype, index, chosen, weighted, guarded):
    n, d, loss = 41, 90, LOSSES["log_loss"]()
    rng = np.random.default_rng(0)
    csr = sparse.random_array((n, d), density=0.5, format="csr", rng=rng, dtype=dtype)
    csr.data[csr.indptr[4] : csr.indptr[5]] = 0
    order = rng.integers(n, size=n) if chosen else np.arange(n)
    _, _, y, w, weight = _problem(loss, n, d, dtype)
    parts, rows, count, given = _csr_parts(guarded, csr, index), None, None, n
    if chosen:  # described one by one, their number known to the device
        data, indices, _ = (part.ctypes.data for part in parts)
        first, sizes = csr.indptr[:-1].astype(np.uint64), np.diff(csr.indptr).astype(np.uint64)
        table = data + first * csr.data.itemsize, indices + first * np.dtype(index).itemsize, sizes
        rows, given = guarded(np.stack(table, axis=1).astype(np.uint64)[order]), 10**9
        count, parts = guarded(np.array([float(n)])), (None, None, None)
    options = kernels.options("csr_gradient", dtype, loss="log_loss", result=dtype, index=index)
    library = build("csr_gradient", options)
    launch = replace(kernels.launch("csr_gradient", n, d, dtype, 1), grid=2)
    ours, gradient, total = guarded(w), guarded.unset(d + 1, dtype), guarded(np.zeros(1))
    clear = replace(kernels.launch("csr_clear", d + 1, 1, dtype, 1), grid=1)
    run(library, "csr_clear", clear, gradient, d + 1)
    run(
        library, "csr_gradient", launch, *parts, rows, guarded(y),
        guarded(weight) if weighted else None, ours, gradient, total, given, d, 1, 0.0, count,
    )  # fmt: skip
    values = csr.toarray()[order]
    expected, truth, scale = _truth(loss, values, y, w, weight if weighted else None, True)
    assert total[0] == pytest.approx(expected, rel=20 * RTOL[dtype])
    assert (np.abs(gradient - truth) <= 20 * RTOL[dtype] * (scale + 1e-3)).all()
    if chosen:
        _check_adagrad(guarded, dtype, index, rows, ours, gradient)


def _check_adagrad(guarded, dtype, index, rows, w, gradient):
    """A step where the rows have entries, then one of no rows."""
    optimizer, n, d = OPTIMIZERS["adagrad"](), len(rows), len(w) - 1
    mean, expected = gradient / n, w.copy()
    accumulator = guarded(np.full(d + 1, 0.5, dtype))
    slots = {"accumulator": accumulator.copy()}
    optimizer.update(expected, mean, slots, 0.1, 1)
    options = kernels.options("csr_adagrad", dtype, result=dtype, index=index)
    library = build("csr_adagrad", options)
    launch = replace(kernels.launch("csr_adagrad", n, d, dtype, 1), grid=2)
    for count in (n, 0):
        numbers = guarded(np.array(kernels.optimizer_numbers(optimizer, count, 0.1, 1)))
        arrays = rows, w, accumulator, gradient
        run(library, "csr_adagrad", launch, *arrays, d, 1, numbers)
    assert (gradient == 0).all()
    np.testing.assert_allclose(w, expected, rtol=10 * RTOL[dtype], atol=RTOL[dtype])
    np.testing.assert_allclose(accumulator, slots["accumulator"], rtol=10 * RTOL[dtype])


@needs_compiler
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype"),
    [(0, 5, 3, "float32"), (67, 33, 40, "float32"),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (
         (203, 70, 5, "float64"), (41, 45, 150, "float64"), (41, 300, 70, "float16")))],
)  # fmt: skip
@pytest.mark.parametrize("weighted", [True, False])
def test_kmeans(n, d, k, dtype, weighted, guarded):
    rng = np.random.default_rng(0)
    X, values = _stored(rng.normal(size=(n, d)), dtype)
    arithmetic = "float64" if dtype == "float64" else "float32"
    centres = rng.normal(size=(k, d)).astype(arithmetic)
    centres[-1] = centres[0]  # the first of them counts
    weight = rng.random(n).astype(arithmetic) if weighted else None
    library = build("kmeans", kernels.options("kmeans", dtype, d=d, k=k))
    launch = replace(kernels.launch("kmeans", n, d, dtype, 1, k=k), grid=2)
    labels = guarded.unset(n, np.int32)
    sums, counts, inertia = (guarded(np.zeros(s)) for s in ((k, d), k, 1))
    arrays = guarded(X), guarded(centres), guarded(weight) if weighted else None
    run(library, "kmeans", launch, *arrays, labels, sums, counts, inertia, n, d, k)
    squares = ((values[:, None] - centres) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    weight = np.ones(n) if weight is None else weight.astype(float)
    member = (labels[:, None] == np.arange(k)) * weight[:, None]
    rtol = 20 * RTOL[dtype]
    np.testing.assert_allclose(counts, member.sum(axis=0), rtol=rtol)
    np.testing.assert_allclose(sums, member.T @ values, rtol=rtol, atol=rtol)
    assert inertia[0] == pytest.approx((squares.min(axis=1) * weight).sum() if n else 0, rel=rtol)
