#!/usr/bin/env python3
"""Puts gpu_conv.json and gpu_train.json, as scripts/gpu_bench.sh writes them, into the tables of README.md.

    python3 bench/readme_gpu.py [RESULTS (bench/results)]
"""
import json, math, pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = {"fp32": "float32, its full accuracy", "tf32": "TF32", "bf16": "bfloat16",
         "fp32_cl": "float32, channels last", "tf32_cl": "TF32, channels last", "bf16_cl": "bfloat16, channels last"}
MODELS = {"vae": "VAE", "dcgan": "DCGAN"}


def with_row(text, name, cells):
    """`text` with these cells in the row of a table that begins with `name`."""
    text, count = re.subn(rf"^\| {re.escape(name)} \|.*$", f"| {name} | {' | '.join(cells)} |", text, flags=re.M)
    assert count == 1, name
    return text


def main():
    results = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench/results"
    text = (ROOT / "README.md").read_text()

    times = json.loads((results / "gpu_conv.json").read_text())["times"]
    for mode, name in MODES.items():
        cells = []
        for op in ("fwd", "dx", "dw"):
            ratios = [r["pytorch"][f"{op}_ms"] / r[f"{op}_ms"] for r in times if r["mode"] == mode]
            assert ratios, f"gpu_conv.json has no {mode}"
            cells.append(f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} ({min(ratios):.2f})")
        text = with_row(text, name, cells)

    rows = json.loads((results / "gpu_train.json").read_text())["rows"]
    for plain in (r for r in rows if not r["tf32"]):
        both = [plain, next(r for r in rows if r["tf32"] and (r["model"], r["batch"]) == (plain["model"], plain["batch"]))]
        cells = []
        for r in both:
            cells += [f"{round(r['ours']['captured'], -3):,.0f}", f"{r['ours']['captured'] / r['pytorch']['graph']:.2f}"]
        cells.append(", ".join(f"{r['ours']['eager'] / r['pytorch']['eager']:.2f}" for r in both))
        cells.append(f"{plain['ours']['peak_MB'] / plain['pytorch']['peak_MB']:.2f}")
        text = with_row(text, f"{MODELS[plain['model']]}, {plain['batch']}", cells)
    (ROOT / "README.md").write_text(text)


if __name__ == "__main__":
    main()
