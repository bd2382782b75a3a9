"""Draws plots as SVG, in colors for light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Mapping

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from .bench import LIMIT, size, time

GREY = "#808080"
COLOURS = ("#2f7ed8", "#e0632a", "#2a9d6f", "#b0609f", "#b58900", "#7b6fd0", "#c0504d", "#17a2c8")
MARKS = "osD^vPXd.*"
EDGES = ("axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "text.color")

pyplot.rcParams.update(dict.fromkeys(EDGES, GREY) | {"axes.spines.top": False, "axes.spines.right": False})
pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benchmarks"})  # text stays text


def lines(title: str, across: str, series: Mapping[str, Mapping[int, float]]) -> str:
    """Plot seconds by size on logarithmic axes."""
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    for number, (name, points) in enumerate(series.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}
        if name.startswith(LIMIT):
            style |= {"color": GREY, "linestyle": "--"}
        axes.plot(list(points), list(points.values()), label=name.replace("`", ""), **style)  # type: ignore[arg-type]
    sizes = sorted({size for points in series.values() for size in points})
    axes.set_xscale("symlog", linthresh=min(size for size in sizes if size))
    axes.set_yscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size(x)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: time(y) if y > 0 else "0"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(across)
    axes.set_title(title, loc="left")
    axes.grid(color=GREY, alpha=0.25)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"
