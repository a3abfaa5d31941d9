#!/usr/bin/env python3
"""Draws bench/results/gpu_conv.json as README.md shows it: how many times as fast as cuDNN each layer and pass is.

    python3 bench/plot_gpu.py [gpu_conv.json] [docs/images/gpu_conv.png]

Needs Matplotlib (python3-matplotlib).
"""
import json, pathlib, sys

import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import NullLocator

from readme_gpu import MODES, ROOT

PASSES = {"fwd": ("forward", "o", "#1b6ca8"), "dx": ("input gradient", "s", "#e07b00"),
          "dw": ("weight gradient", "^", "#2e8540")}


def main():
    source = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench/results/gpu_conv.json"
    picture = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/images/gpu_conv.png"
    results = json.loads(source.read_text())
    shapes = list(dict.fromkeys(row["shape"] for row in results["times"]))
    modes = {mode: name for mode, name in MODES.items() if mode in results["geometric_means"]}
    figure, panels = pyplot.subplots(1, len(modes), figsize=(14, 5), sharex=True, sharey=True, layout="constrained")
    for panel, (mode, name) in zip(panels, modes.items()):
        rows = {row["shape"]: row for row in results["times"] if row["mode"] == mode}
        for op, (label, marker, colour) in PASSES.items():
            timed = [i for i, shape in enumerate(shapes) if shape in rows]
            ratios = [rows[shapes[i]]["pytorch"][f"{op}_ms"] / rows[shapes[i]][f"{op}_ms"] for i in timed]
            panel.plot(ratios, timed, marker, color=colour, markersize=5, alpha=0.85, label=label)
        panel.axvline(1, color="black", linewidth=1)
        panel.set_title(f"{name}\ngeometric mean {results['geometric_means'][mode]['all']:.2f}", fontsize=10)
        panel.set_xscale("log")
        panel.set_xticks([0.5, 1, 2, 5, 10, 50], ["0.5", "1", "2", "5", "10", "50"])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.grid(color="0.9")
        panel.set_axisbelow(True)
    panels[0].set_yticks(range(len(shapes)), shapes)
    panels[0].invert_yaxis()
    commits = dict.fromkeys([results["commit"], *(row["commit"] for row in results["times"] if "commit" in row)])
    figure.supxlabel(f"times as fast as PyTorch {results['pytorch'].split('+')[0]} with autotuned cuDNN "
                     f"on an {results['gpu']} ({', '.join(commits)}); right of 1: Tapedeck is faster", fontsize=10)
    figure.suptitle(" ")  # the legend's room
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    main()
