#!/usr/bin/env python3
"""How many times faster cuda_conv_bench's times are than PyTorch's: compare_cuda_conv.py OURS PYTORCH [LIMIT]

Both are files of JSON lines, one a shape and mode. Geometric means by mode follow; beside nchw our time is also
compared with PyTorch's better layout. Exits with 1 if a ratio is below LIMIT.
"""
import json
import math
import sys


def read(path):
    found = {}
    for line in open(path):
        if line.startswith("{"):
            r = json.loads(line)
            if "fwd_ms" in r:
                found[r["shape"], r["mode"]] = r
    return found


ours, theirs = read(sys.argv[1]), read(sys.argv[2])
limit = float(sys.argv[3]) if len(sys.argv) > 3 else 0
ops = ("fwd", "dx", "dw")
means, slow = {}, []
print(f"{'shape':10} {'mode':8}" + "".join(f"{op:>10} ms  PyTorch   ratio" for op in ops))
for (shape, mode), r in ours.items():
    peer = theirs.get((shape, mode))
    if peer is None:
        continue
    line = f"{shape:10} {mode:8}"
    for op in ops:
        ratio = peer[op + "_ms"] / r[op + "_ms"]
        means.setdefault((mode, op), []).append(ratio)
        if ratio < limit:
            slow.append((shape, mode, op, ratio))
        line += f"{r[op + '_ms']:10.4f} {peer[op + '_ms']:10.4f} {ratio:8.2f}"
    print(line)
for mode in sorted({m for m, _ in means}):
    logs = {op: [math.log(v) for v in means[mode, op]] for op in ops}
    every = [v for op in ops for v in logs[op]]
    text = "  ".join(f"{op} {math.exp(sum(v) / len(v)):.2f}" for op, v in logs.items())
    print(f"geometric mean {mode:8} {text}  all {math.exp(sum(every) / len(every)):.2f}")
for s in slow:
    print("below the limit: %s %s %s %.2f" % s)
sys.exit(1 if slow else 0)
