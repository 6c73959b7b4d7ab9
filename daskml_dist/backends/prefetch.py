"""Hint to a processor, for compiled loops, of what they will read soon."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["prefetch"]


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask for where an array's entry (of several dimensions: where a row) begins.

    It changes nothing but the time of a later read.

    Parameters
    ----------
    array : ndarray
    index : int
        Not below 0.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of_array = signature.args[0]
        found = context.make_array(of_array)(context, builder, args[0])
        place = [args[1], *[context.get_constant(types.intp, 0)] * (of_array.ndim - 1)]
        at = cgutils.get_item_pointer(context, builder, of_array, found, place)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        # To be read, and kept in all caches.
        facts = [ir.Constant(number, value) for value in (0, 3, 1)]
        builder.call(hint, [builder.bitcast(at, byte), *facts])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
