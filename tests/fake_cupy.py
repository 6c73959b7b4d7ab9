"""What stands for CuPy and its arrays where there is no GPU: NumPy may not read them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend, devices
from daskml_dist.backends.cupy_backend import CupyBackend


class DeviceArray:
    """A dense array that computes as CuPy's does, and mixes with no array of NumPy's."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}
    __array_ufunc__ = None
    #: Entries that were copied to the host.
    copied = 0

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim
        self.flags = SimpleNamespace(c_contiguous=values.flags.c_contiguous)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __len__(self) -> int:
        return len(self.values)

    def get(self) -> NDArray[Any]:
        DeviceArray.copied += self.values.size
        return self.values.copy()

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        return self if self.dtype == dtype and not copy else DeviceArray(self.values.astype(dtype))

    def dot(self, other: DeviceArray) -> DeviceArray:
        assert isinstance(other, DeviceArray)
        return DeviceArray(self.values.dot(other.values))

    def __getitem__(self, at: Any) -> DeviceArray:
        # CuPy copies positions in the host's memory to the device.
        found = self.values[at if isinstance(at, np.ndarray) else _unpack(at)]
        return DeviceArray(np.asarray(found))

    def __setitem__(self, at: Any, values: Any) -> None:
        self.values[_unpack(at)] = _unpack(values)

    def reshape(self, *shape: int) -> DeviceArray:
        return DeviceArray(self.values.reshape(*shape))

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self.values.T)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def __dlpack__(self, *, stream: int) -> Any:
        # In memory of the host, which torch then takes for the device's.
        assert stream == -1
        return self.values.__dlpack__()

    # Converting one entry to a number waits for the device.

    def __bool__(self) -> bool:
        return bool(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __float__(self) -> float:
        return float(self.values)

    def __array_namespace__(self) -> Any:
        return _Module()


def _unpack(value: Any) -> Any:
    """NumPy's array of one on the device; others are refused, as CuPy does."""
    if isinstance(value, DeviceArray):
        return value.values
    if isinstance(value, tuple | list):
        return type(value)(map(_unpack, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wrap, value))
    return DeviceArray(np.asarray(value)) if isinstance(value, _HOST) else value


_HOST = np.ndarray, np.generic


def _operate(name: str) -> Any:
    def method(self: DeviceArray, *others: Any) -> Any:
        found = _wrap(getattr(self.values, name)(*map(_unpack, others)))
        return self if name.startswith("__i") and name != "__invert__" else found

    return method


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor".split()
for _name in (
    *_BINARY, *(f"r{name}" for name in _BINARY), *(f"i{name}" for name in _BINARY),
    *"neg abs invert eq ne lt le gt ge".split(),
):  # fmt: skip
    setattr(DeviceArray, f"__{_name}__", _operate(f"__{_name}__"))


class DeviceCSR:
    """A CSR matrix, as ``cupyx.scipy.sparse`` has it."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, 2
        self.data = DeviceArray(values.data)

    @property
    def has_canonical_format(self) -> bool:
        return bool(self.values.has_canonical_format)

    def tocsr(self) -> DeviceCSR:
        return self

    def copy(self) -> DeviceCSR:
        return DeviceCSR(self.values.copy())

    def get(self) -> Any:
        DeviceArray.copied += self.values.nnz
        return self.values.copy()

    def astype(self, dtype: Any, copy: bool = True) -> DeviceCSR:
        return self if self.dtype == dtype and not copy else DeviceCSR(self.values.astype(dtype))

    def dot(self, other: DeviceArray) -> DeviceArray:
        assert isinstance(other, DeviceArray)
        self.values.sum_duplicates()  # in place, as CuPy does
        return DeviceArray(self.values @ other.values)

    def toarray(self) -> DeviceArray:
        return DeviceArray(self.values.toarray())

    def __getitem__(self, at: slice) -> DeviceCSR:
        return DeviceCSR(self.values[at])


#: Functions of CuPy that the package calls; all but two are of the array API standard.
_FUNCTIONS = set(
    "abs add all any argmax argmin argsort astype bincount broadcast_to clip concat count_nonzero "
    "divide equal exp floor interp isfinite isinf isnan log log1p max maximum mean min minimum "
    "multiply nonzero arange ones permute_dims reshape searchsorted sort sqrt square stack "
    "subtract sum take unique_counts unique_inverse unique_values where zeros zeros_like".split()
)


class _Module:
    """The functions of CuPy, on arrays of the device alone."""

    float32, float64, int32, int64, bool = np.float32, np.float64, np.int32, np.int64, np.bool_
    uint8 = np.uint8
    __name__ = "cupy"

    def __getattr__(self, name: str) -> Any:
        assert name in _FUNCTIONS, name
        function = getattr(np, name)

        def call(*args: Any, **named: Any) -> Any:
            with np.errstate(all="ignore"):  # CuPy warns of nothing
                return _wrap(
                    function(*map(_unpack, args), **{k: _unpack(v) for k, v in named.items()})
                )

        return call

    def asarray(self, array: Any, dtype: Any = None, order: str = "K") -> DeviceArray:
        if isinstance(array, DeviceArray):
            return array if dtype is None else array.astype(dtype, copy=False)
        return DeviceArray(np.array(array, dtype))

    linalg = SimpleNamespace(inv=lambda array: DeviceArray(np.linalg.inv(array.values)))

    def ascontiguousarray(self, array: DeviceArray) -> DeviceArray:
        return DeviceArray(np.ascontiguousarray(array.values))

    def from_dlpack(self, array: Any) -> DeviceArray:
        return DeviceArray(np.from_dlpack(array))

    def asnumpy(self, array: DeviceArray) -> NDArray[Any]:
        return array.get()

    def concatenate(self, arrays: list[DeviceArray]) -> DeviceArray:
        return DeviceArray(np.concatenate([array.values for array in arrays]))


_SPARSE = SimpleNamespace(issparse=lambda X: isinstance(X, DeviceCSR))


class FakeCupy(CupyBackend):
    """The GPU backend's own code on these arrays."""

    def __init__(self) -> None:
        super().__init__(_Module(), _SPARSE)

    @classmethod
    def problem(cls) -> str | None:
        return None


def to_device(rows: Any) -> DeviceArray | DeviceCSR:
    """Rows as the stand-ins for CuPy's."""
    return DeviceCSR(rows) if sparse.issparse(rows) else DeviceArray(np.asarray(rows))


ToDevice = Callable[[Any], Any]


def make_blocks(values: Any, chunks: tuple[int, ...], to_device: ToDevice) -> da.Array:
    """Return a lazy array whose blocks are moved to a device in their tasks."""
    return da.from_array(np.arange(sum(chunks)), chunks=(chunks,)).map_blocks(
        lambda at: to_device(values[at]),
        chunks=(chunks, *((n,) for n in values.shape[1:])),
        new_axis=list(range(1, values.ndim)) or None,
        meta=np.empty((0,) * values.ndim, values.dtype),
    )


def plug_in(backend: type[Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a backend be that of the GPU."""
    found = devices._import_class
    monkeypatch.setattr(
        devices,
        "_import_class",
        lambda *where: backend if where[1] == "CupyBackend" else found(*where),
    )
