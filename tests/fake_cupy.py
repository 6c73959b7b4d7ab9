"""What stands for CuPy and its arrays where there is no GPU: NumPy may not read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend, devices
from daskml_dist.backends.cupy_backend import CupyBackend


class DeviceArray:
    """A dense array, with what CuPy's has and predictions use."""

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

    def get(self) -> NDArray[Any]:
        DeviceArray.copied += self.values.size
        return self.values.copy()

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        return self if self.dtype == dtype and not copy else DeviceArray(self.values.astype(dtype))

    def dot(self, other: DeviceArray) -> DeviceArray:
        assert isinstance(other, DeviceArray)
        return DeviceArray(self.values.dot(other.values))

    def __getitem__(self, at: Any) -> DeviceArray:
        return DeviceArray(self.values[at])

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    # What asks for a number of one entry waits for the device, and gets it.

    def __bool__(self) -> bool:
        return bool(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __float__(self) -> float:
        return float(self.values)

    def __invert__(self) -> DeviceArray:
        return DeviceArray(~self.values)

    def __array_namespace__(self) -> Any:
        return _Module()


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

    def __getitem__(self, at: slice) -> DeviceCSR:
        return DeviceCSR(self.values[at])


class _Module:
    """The functions of CuPy that predictions and checks call."""

    def __getattr__(self, name: str) -> Any:
        assert name in {"any", "argmax", "isfinite", "reshape", "sum"}
        function = getattr(np, name)
        return lambda array, *rest, **named: DeviceArray(
            np.asarray(function(array.values, *rest, **named))
        )

    def asarray(self, array: Any, order: str = "K") -> DeviceArray:
        return array if isinstance(array, DeviceArray) else DeviceArray(np.array(array))

    def asnumpy(self, array: DeviceArray) -> NDArray[Any]:
        return array.get()

    def concatenate(self, arrays: list[DeviceArray]) -> DeviceArray:
        return DeviceArray(np.concatenate([array.values for array in arrays]))


class FakeCupy(CupyBackend):
    """The GPU backend's own code on these arrays."""

    def __init__(self) -> None:
        super().__init__(_Module(), sparse)

    @classmethod
    def problem(cls) -> str | None:
        return None


def to_device(rows: Any) -> DeviceArray | DeviceCSR:
    """Rows as the stand-ins for CuPy's."""
    return DeviceCSR(rows) if sparse.issparse(rows) else DeviceArray(np.asarray(rows))


def plug_in(backend: type[Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a backend be that of the GPU."""
    found = devices._import_class
    monkeypatch.setattr(
        devices,
        "_import_class",
        lambda *where: backend if where[1] == "CupyBackend" else found(*where),
    )
