"""A land-cover map of a (time, y, x) cube: boosting on the variables of an xarray.Dataset.

    python examples/land_cover.py
    python examples/land_cover.py --size 1000 --times 8 --picture cover.png

draws a scene of water, forest, field and town: red and infrared at several times, and the altitude
of each cell, which does not change. The cells of a western strip have labels, and the classifier
learns them; every cell of the cube is then predicted lazily, chunk by chunk, and gets the shape of
the grid back. The program tells the accuracy on the cells without labels; --picture draws the map
that most times agree on beside the truth (matplotlib). Needs xarray.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from daskml_dist.ensemble import HistGradientBoostingClassifier

NAMES = ["water", "forest", "field", "town"]
#: Reflectance of each kind in red and infrared, and how much infrared rises with summer.
RED, INFRARED, SUMMER = [0.04, 0.05, 0.12, 0.2], [0.03, 0.35, 0.3, 0.22], [0.0, 0.1, 0.2, 0.02]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=120, help="cells of a side")
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--picture", type=Path, help="file to draw the map to")
    arguments = parser.parse_args()
    for package, need in (("xarray", True), ("matplotlib", arguments.picture)):
        if need and importlib.util.find_spec(package) is None:
            parser.error(f"this needs {package}: pip install {package}")
    cube = draw_scene(arguments.times, arguments.size)
    features = cube.drop_vars("cover")
    # Labels are known in the west alone.
    labelled = cube.isel(x=slice(0, arguments.size // 3))
    model = HistGradientBoostingClassifier(max_iter=30, random_state=0)
    model.fit(labelled.drop_vars("cover"), labelled["cover"])
    answers = model.predict(features).reshape(cube["red"].shape)
    cube["predicted"] = (cube["red"].dims, answers)
    east = cube.isel(x=slice(arguments.size // 3, None))
    accuracy = float((east["predicted"] == east["cover"]).mean())
    # The kind that most times agree on.
    votes = [(cube["predicted"] == kind).sum("time") for kind in range(len(NAMES))]
    cover = da.stack([vote.data for vote in votes]).argmax(axis=0).compute()
    truth = cube["cover"].isel(time=0).values
    cells = cube["red"]
    print(f"{dict(cells.sizes)}: {cells.size:,} cells in {cells.data.npartitions} chunks")
    of_map = (cover == truth).mean()
    print(f"accuracy {accuracy:.3f} at one time, {of_map:.3f} of the map of all times")
    if arguments.picture:
        draw(cover, truth, arguments.picture)


def draw_scene(n_times: int, size: int) -> Any:
    """A cube of Dask chunks, one a time."""
    import xarray

    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size] / size
    waves = [
        np.sin(2 * np.pi * (a * x + b * y + c)) / (a + b)
        for a, b, c in zip(*rng.uniform(0.5, 3, (2, 12)), rng.random(12), strict=True)
    ]
    height = np.sum(waves, axis=0)
    height = (height - height.min()) / np.ptp(height)
    kinds = np.digitize(height, [0.3, 0.45, 0.6])  # water lies lowest
    kinds = np.array([0, 2, 3, 1])[kinds]
    seasons = np.sin(np.pi * (np.arange(n_times) + 0.5) / n_times)
    red = np.asarray(RED)[kinds] + 0.03 * rng.normal(size=(n_times, size, size))
    infrared = np.asarray(INFRARED)[kinds] + seasons[:, None, None] * np.asarray(SUMMER)[kinds]
    infrared += 0.05 * rng.normal(size=infrared.shape)
    cube = ("time", "y", "x")
    return xarray.Dataset(
        {
            "red": (cube, red.astype("float32")),
            "infrared": (cube, infrared.astype("float32")),
            "altitude": (
                cube[1:],
                (900 * height + 60 * rng.normal(size=height.shape)).astype("f4"),
            ),
            "cover": (cube, np.broadcast_to(kinds, red.shape)),
        }
    ).chunk({"time": 1})


def draw(cover: Any, truth: Any, path: Path) -> None:
    """The map beside the truth."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    colours = ListedColormap(["#3b6fb6", "#2f6b3a", "#d9c45c", "#9a9a9a"])
    for place, (values, title) in enumerate([(cover, "predicted"), (truth, "truth")], 1):
        axes = figure.add_subplot(1, 2, place)
        drawn = axes.imshow(values, cmap=colours, vmin=-0.5, vmax=len(NAMES) - 0.5)
        axes.set_title(title)
        axes.axis("off")
    bar = figure.colorbar(drawn, ax=figure.axes, ticks=range(len(NAMES)))
    bar.ax.set_yticklabels(NAMES)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
