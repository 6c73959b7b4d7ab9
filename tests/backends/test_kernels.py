"""Versions of the CUDA kernels, all of which compile without register spills."""

from __future__ import annotations

import functools
import itertools

import pytest

from daskml_dist.backends import kernels
from daskml_dist.backends.kernels.usage import ARCHITECTURES, compiler, usage
from daskml_dist.losses import LOSSES
from daskml_dist.optimizers import OPTIMIZERS
from tests.backends.kernel_problems import DTYPES, every_version

needs_nvrtc = pytest.mark.skipif(
    compiler() is None, reason="no NVRTC here: pip install nvidia-cuda-nvrtc"
)


def test_each_loss_with_steps_of_rows_has_a_kernel():
    assert set(kernels.LOSSES) == LOSSES.keys() - {"tweedie"}


@pytest.mark.parametrize(("dtype", "most"), [*zip(DTYPES, (2048, 1024, 2048, 2048), strict=True)])
def test_rows_are_covered_up_to_a_width(dtype, most):
    assert every_version(dtype)
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


def _assert_no_local_memory(name, architecture, dtype, **chosen):
    capability = int(architecture.removeprefix("sm_"))
    options = kernels.options(name, dtype, capability=capability, **chosen)
    found = usage(name, options, architecture)
    assert found.keys() == set(kernels.FUNCTIONS[name])
    for function, used in found.items():
        assert used.spills == used.stack == 0, (function, architecture, options, used)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_without_spills(architecture):
    check = functools.partial(_assert_no_local_memory, architecture=architecture)
    check("linear_gradient", dtype="float32", d=512, loss="log_loss", result="float32")
    check("linear_gradient", dtype="float32", d=2048, loss="log_loss")
    check("linear_gradient", dtype="bfloat16", d=512, loss="gamma")
    check("gather_rows", dtype="float32")
    check("softmax_gradient", dtype="float32", k=10)
    check("softmax_rows", dtype="float32", d=100, k=10)
    check("optimizer_updates", dtype="float32", optimizer="adam", result="float32")
    check("csr_gradient", dtype="float32", loss="log_loss", result="float32")
    check("csr_gradient", dtype="float64", loss="log_loss", result="float64")
    check("csr_adagrad", dtype="float32", result="float32")
    check("kmeans", dtype="float32", d=100, k=64)
    if architecture != "sm_75":
        check("kmeans_tiles", dtype="float32", d=100, k=64)
    for name in (n for n in kernels.FUNCTIONS if n.startswith(("tree_", "forest_"))):
        check(name, dtype="float32")


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_compiles_without_spills(architecture, dtype):
    for d, alignment in every_version(dtype):
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
        check("gather_rows", dtype=dtype)
        check("csr_adagrad", dtype=dtype, result=dtype)
        check("tree_predict", dtype=dtype)
        check("tree_bins", dtype=dtype)
        for k in (2, 10, 1000):
            check("softmax_gradient", dtype=dtype, k=k)
        for optimizer in OPTIMIZERS:
            check("optimizer_updates", dtype=dtype, optimizer=optimizer)
    for dtype, d, k in itertools.product(DTYPES, (100, 2000), (1, 64, 96, 1000)):
        check("kmeans", dtype=dtype, d=d, k=k)
    sizes = ((28, 10), (29, 3), (200, 10), (60, 16), (60, 18), (12, 20), (20, 20))
    capability = int(architecture.removeprefix("sm_"))
    for (d, k), dtype in itertools.product(sizes, DTYPES):
        # There is no kernel for sizes that need too many registers.
        if kernels.launch("softmax_rows", 10**6, d, dtype, 100, k=k, capability=capability):
            check("softmax_rows", dtype=dtype, d=d, k=k)
    for k in (8, 16, 32) if architecture != "sm_75" else ():
        check("kmeans_tiles", dtype="float32", k=k)
