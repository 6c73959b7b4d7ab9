"""Export of fitted modules to files for other programs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.library import load_torch


def export(module: Any, path: str | Path, example: tuple[list[Any], dict[str, Any]]) -> None:
    """Write a module to a file, in the format of its suffix.

    `example` has positional and named inputs of the module, with which ONNX traces it.
    """
    path = Path(path)
    write = _FORMATS.get(path.suffix)
    if write is None:
        raise InvalidParameterError(
            f"path={str(path)!r}: it must end with one of {list(_FORMATS)}; for anything else, "
            "torch.save(model.state_dict(), path)."
        )
    write(module, path, example)


def export_layers(module: Any, path: str | Path) -> None:
    """Write the parameters of a module whose embeddings are in a table, without those."""
    if Path(path).suffix != ".safetensors":
        raise InvalidParameterError(
            f"path={str(path)!r}: rows of embeddings= are in a table, which such a file cannot "
            'contain. Write the other parameters to a file that ends with ".safetensors", or '
            "save the estimator with save(path)."
        )
    _write_tensors(module, Path(path), None)


def _write_tensors(module: Any, path: Path, example: Any) -> None:
    """Write parameters and buffers as a safetensors file."""
    safetensors = _import_or_explain("safetensors.torch", "safetensors", path)
    # The tensors of a fitted module are views of one vector; the format refuses shared memory.
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    safetensors.save_file(state, str(path))


def _write_onnx(module: Any, path: Path, example: tuple[list[Any], dict[str, Any]]) -> None:
    """Write the computation as an ONNX file, for any number of rows."""
    _import_or_explain("onnx", "onnx", path)
    _import_or_explain("onnxscript", "onnxscript", path)
    torch, (positional, named) = load_torch(), example
    # The first dimension of each input is symbolic; the example has an arbitrary number of rows.
    rows = torch.export.Dim("rows")
    shapes = (*({0: rows} for _ in positional),) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and onnxscript warn about each other's versions
        program = torch.onnx.export(
            module, tuple(positional), kwargs=named, dynamo=True, verbose=False,
            dynamic_shapes=shapes if shapes else {name: {0: rows} for name in named},
        )  # fmt: skip
    program.save(str(path))


_FORMATS: dict[str, Callable[[Any, Path, Any], None]] = {
    ".safetensors": _write_tensors,
    ".onnx": _write_onnx,
}


def _import_or_explain(module: str, package: str, path: Path) -> Any:
    """Return a module that a format needs; raise with the remedy if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidParameterError(
            f"{path.name} needs {package}, which is not installed: pip install {package}."
        ) from error
