#!/usr/bin/env python3
"""ConvTranspose2d on the CPU: Tapedeck's times beside PyTorch's, measured in turn in one run.

    python3 -m venv /tmp/pt && /tmp/pt/bin/pip install torch numpy   # PyTorch stays out of the product
    /tmp/pt/bin/python bench/compare_cpu.py [--threads 1,2] [--cases a,b] [--json FILE]
        [--random 200 [--from 0 --to 50] [--neighbours 5]] [--program build/release/bench/time_conv_bench]

Builds build/bench first. Ours and PyTorch's take turns (three each); what is printed and written are the
medians over all of them, of float32 with random inputs: the forward with bias, the gradient of the input and
that of the weight. `limit` is the larger share that ours has of two measured limits: fused multiply-adds in
registers (counting only taps that reach an output), and a copy in memory (x, weight and y once each; a share
above 1 means that they stayed in the cache). `both` is the share of what the same multiply-adds take in registers while
as many bytes are read and written (bench/cpu_limits.h).

--random measures that many random parameter sets instead, and with --neighbours each one's limit beside the median of
as many sets that differ in one parameter. It ends with what is more than 10% slower than PyTorch or has less than half
of its neighbours' limit; after three more turns, so that a moment's noise is not taken for it.
"""
import argparse, math, statistics, time

import on_cpu
from conv_sets import neighbours, pair, random_sets, words

OPS = ("forward", "input_gradient", "weight_gradient")

# name: n, ci, h, w, co, kernel, stride, padding, output_padding, dilation, groups; kb*: KernelBench level 1,
# scaled down to run in under a second.
CASES = {
    "dcgan1": (64, 100, 1, 1, 512, 4, 1, 0, 0, 1, 1),
    "dcgan2": (64, 512, 4, 4, 256, 4, 2, 1, 0, 1, 1),
    "dcgan3": (64, 256, 8, 8, 128, 4, 2, 1, 0, 1, 1),
    "dcgan4": (64, 128, 16, 16, 64, 4, 2, 1, 0, 1, 1),
    "dcgan5": (64, 64, 32, 32, 3, 4, 2, 1, 0, 1, 1),
    "vae1": (64, 64, 7, 7, 64, 3, 2, 1, 1, 1, 1),
    "vae2": (64, 64, 14, 14, 32, 3, 2, 1, 1, 1, 1),
    "vae3": (64, 32, 28, 28, 1, 3, 1, 1, 0, 1, 1),
    "mnist": (64, 32, 14, 14, 1, 4, 2, 1, 0, 1, 1),
    "unet_up": (4, 256, 28, 28, 128, 2, 2, 0, 0, 1, 1),
    "depthwise": (16, 64, 56, 56, 64, 4, 2, 1, 0, 1, 64),
    "kb71": (1, 32, 256, 512, 32, 3, 1, 0, 0, 1, 1),
    "kb75": (2, 32, 128, 256, 64, (3, 5), (2, 3), (1, 2), 0, (2, 1), 4),
    "kb78": (1, 32, 256, 512, 32, (3, 7), 1, (1, 3), 0, 1, 1),
    "kb81": (2, 32, 64, 128, 64, 3, 5, 1, 0, 2, 1),
}


class Ours:
    def __init__(self, program):
        self.process = on_cpu.start(program, "time_conv_bench")

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().split()

    def limits(self, threads):
        return [float(v) for v in self.ask("limits", threads)]

    def times(self, case, layout, threads, op, milliseconds):
        flops, size, path, *seconds = self.ask(words(case), layout, threads, op, milliseconds)
        return float(flops), float(size), path, [float(s) for s in seconds]

    def together(self, case, layout, threads, op):
        return float(self.ask("together", words(case), layout, threads, op, 0)[0])


def torch_times(case, layout, threads, op, milliseconds):
    import torch
    torch.set_num_threads(threads)
    n, ci, h, w, co, kernel, stride, padding, extra, dilation, groups = case
    kernel, stride, padding, extra, dilation = map(pair, (kernel, stride, padding, extra, dilation))
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    with torch.no_grad():
        x = torch.randn(n, ci, h, w).contiguous(memory_format=memory)
        weight, bias = torch.randn(ci, co // groups, *kernel), torch.randn(co)
        forward = lambda: torch.nn.functional.conv_transpose2d(x, weight, bias, stride, padding, extra, groups, dilation)
        gy = torch.randn_like(forward())
        mask = (op == "input_gradient", op == "weight_gradient", False)
        call = forward if op == "forward" else lambda: torch.ops.aten.convolution_backward(
            gy, x, weight, None, stride, padding, dilation, True, extra, groups, mask)
        call()
        seconds, start = [], time.perf_counter()
        while len(seconds) < 3 or (time.perf_counter() - start < milliseconds * 1e-3 and len(seconds) < 1000):
            before = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - before)
    return seconds


def share(flops, size, seconds, limits):
    return max(flops / limits[0], size / limits[1]) / seconds


def measure(ours, row, limits, args):
    """Takes turns and adds what they took to a row, which has "case", "parameters", "op", "threads" and "layout"."""
    case, layout, threads, op = (row[k] for k in ("parameters", "layout", "threads", "op"))
    mine, theirs = row.setdefault("mine", []), row.setdefault("theirs", [])
    for _ in range(args.rounds):
        flops, size, row["path"], seconds = ours.times(case, layout, threads, op, args.milliseconds)
        mine += seconds
        row.setdefault("together", []).append(ours.together(case, layout, threads, op))
        theirs += torch_times(case, layout, threads, op, args.milliseconds)
    a, b = statistics.median(mine), statistics.median(theirs)
    row.update({"ms": a * 1e3, "pytorch_ms": b * 1e3, "ratio": b / a, "gflops": flops / a * 1e-9,
                "gbytes": size / a * 1e-9, "share_of_peak": flops / a / limits[0], "share_of_copy": size / a / limits[1],
                "share_of_both": statistics.median(row["together"]) / a})
    if args.neighbours:
        shares = row.setdefault("of_neighbours", [[] for _ in neighbours(case, args.neighbours, args.seed)])
        for near, all_of_it in zip(neighbours(case, args.neighbours, args.seed), shares):
            flops, size, _, seconds = ours.times(near, layout, threads, op, args.milliseconds)
            all_of_it.append(share(flops, size, statistics.median(seconds), limits))
        row["to_neighbours"] = max(row["share_of_peak"], row["share_of_copy"]) / statistics.median(map(statistics.median, shares)) if shares else 1
    print(f"{row['case']:10} {op:15} {threads} {layout} {row['path']:11} {row['ms']:9.3f} {row['pytorch_ms']:9.3f}  {row['ratio']:6.2f}x"
          f" {row['gflops']:7.1f} GFLOP/s {row['gbytes']:6.1f} GB/s  limit {max(row['share_of_peak'], row['share_of_copy']):4.2f}, both {row['share_of_both']:4.2f}"
          + (f", {row['to_neighbours']:4.2f} of neighbours'" if args.neighbours else ""), flush=True)
    return row


def is_slow(row):
    return row["ratio"] < 0.9 or row.get("to_neighbours", 1) < 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--cases", default="", help="names, separated by commas; all if empty")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--layout", default="nchw", choices=["nchw", "nhwc"])
    parser.add_argument("--random", type=int, default=0, help="so many random parameter sets instead")
    parser.add_argument("--from", type=int, default=0, dest="first", help="of the random sets")
    parser.add_argument("--to", type=int, default=1 << 30)
    parser.add_argument("--neighbours", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=60, help="of each turn")
    parser.add_argument("--program", help="a time_conv_bench that is built already")
    parser.add_argument("--json", help="file to write; rows of the same commit that it has stay")
    args = parser.parse_args()

    ours, rows, limits = Ours(args.program), [], {}
    cases = random_sets(args.random, args.seed) if args.random else CASES
    wanted = args.cases.split(",") if args.cases else list(cases)[args.first:args.to]
    results = on_cpu.header()
    for threads in map(int, args.threads.split(",")):
        limits[threads] = ours.limits(threads)
        print(f"{threads} threads: {limits[threads][0] * 1e-9:.0f} GFLOP/s, copies {limits[threads][1] * 1e-9:.1f} GB/s\n"
              f"{'case':10} op     threads, layout, path     ours ms  PyTorch ms   ratio")
        for name in wanted:
            for op in args.ops.split(","):
                row = {"case": name, "parameters": cases[name], "op": op, "threads": threads, "layout": args.layout}
                rows.append(measure(ours, row, limits[threads], args))
                if args.random and is_slow(row):
                    measure(ours, row, limits[threads], args)
    for row in rows:
        for k in ("mine", "theirs", "together", "of_neighbours"):
            row.pop(k, None)
    if args.json:
        rows = on_cpu.write(args.json, {**results, "limits": {str(t): {"flops": l[0], "copy_bytes": l[1]} for t, l in limits.items()},
                                        "rows": rows}, lambda row: (row["case"], row["op"], row["threads"], row["layout"]))
    for threads in sorted({r["threads"] for r in rows}):
        for op in args.ops.split(","):
            ratios = [r["ratio"] for r in rows if r["threads"] == threads and r["op"] == op]
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            print(f"{op:15} {threads} threads: geometric mean {mean:.2f}x, least {min(ratios):.2f}x, {len(ratios)} cases")
    if args.random:
        slow = [r for r in rows if is_slow(r)]
        print(f"{len(slow)} of {len(rows)} are slow")
        for r in slow:
            print(f"{r['case']:10} {r['op']:15} {r['threads']} {r['path']:11} {r['ratio']:5.2f}x, {r.get('to_neighbours', 1):4.2f} of neighbours', {r['parameters']}")


if __name__ == "__main__":
    main()
