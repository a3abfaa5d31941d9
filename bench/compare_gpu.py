#!/usr/bin/env python3
"""ConvTranspose2d on a GPU: Tapedeck's times beside PyTorch's, in one run.

    python3 bench/compare_gpu.py [--bench build/bench/bench/cuda_conv_bench] [--modes fp32,tf32,bf16,fp32_cl,tf32_cl,bf16_cl]
        [--tune | --tune-slower] [--shapes a,b] [--peer FILE] [--json bench/results/gpu_conv.json] [--limit 0.5]
        [--random 300 [--from 0 --to 100] [--neighbours 3] [--seed 1]]

Builds the benchmark first unless --bench names one. A time is the device's, of one call in a replayed CUDA graph:
the median over replays, random data; both sides have replays by the same rule, after the same rest. fp32 is float32
accuracy (Precision::highest; TF32 off in PyTorch), tf32 and bf16 as they say, _cl with channels last. The shapes are
those of bench/conv_shapes.h. PyTorch runs with cudnn.benchmark, which tries algorithms; --tune has ours tried, too,
--tune-slower for those layers that are slower than PyTorch's without, whose times it adds.
--peer reads PyTorch's times (or those of shared/peers) from a file of JSON lines instead; without PyTorch only our
times are printed. Ratios above 1: ours is faster. Exits with 1 if one is below --limit.

--random times that many random parameter sets instead, briefly, and with --neighbours each one's share of its limit
beside the median of as many sets that differ in one parameter. It ends with what is slower than --limit or has less
than half of its neighbours' share.
"""
import argparse, importlib.util, json, math, pathlib, statistics, subprocess, sys, time

from conv_sets import GPU, neighbours, random_sets, written

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS = ("fwd", "dx", "dw")


def graph_ms(torch, f, effort):
    """Milliseconds of a call of f: the median over replays of a graph that holds enough calls for some milliseconds."""
    milliseconds, most_runs, rest = effort
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(work):
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    for _ in range(2):
        f()
    first = timed(f)
    calls = max(1, min(100, int(milliseconds / first)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            f()
    runs = max(5, min(most_runs, int(100 / (first * calls))))
    torch.cuda.synchronize()
    time.sleep(rest)
    times = sorted([timed(graph.replay) / calls for _ in range(runs + 2)][2:])
    return times[len(times) // 2]


def run(command):
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout


def peer(shapes, modes, effort):
    """Prints versions and PyTorch's times as JSON lines; `shapes` are lines of cuda_conv_bench --list."""
    import torch
    print(json.dumps({"pytorch": torch.__version__, "cudnn": torch.backends.cudnn.version()}))
    torch.backends.cudnn.benchmark = True
    forward, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    for s in shapes:
        for mode in modes:
            torch.backends.cudnn.allow_tf32 = mode.startswith("tf32")
            dtype = torch.bfloat16 if mode.startswith("bf16") else torch.float16 if mode.startswith("fp16") else torch.float32
            layout = torch.channels_last if mode.endswith("_cl") else torch.contiguous_format
            r = {"shape": s["shape"], "mode": mode}
            try:
                x = torch.randn(*s["x"], device="cuda", dtype=dtype).contiguous(memory_format=layout)
                weight = (torch.randn(*s["weight"], device="cuda", dtype=dtype) * 0.05).contiguous(memory_format=layout)
                args = (None, s["stride"], s["padding"], s["dilation"], True, s["output_padding"], s["groups"])
                gy = torch.randn_like(forward(x, weight, *args))
                r["fwd_ms"] = graph_ms(torch, lambda: forward(x, weight, *args), effort)
                r["dx_ms"] = graph_ms(torch, lambda: backward(gy, x, weight, *args, (True, False, False)), effort)
                r["dw_ms"] = graph_ms(torch, lambda: backward(gy, x, weight, *args, (False, True, False)), effort)
            except RuntimeError as error:  # there are sets that cuDNN does not have, and memory ends
                r["error"] = str(error)
            print(json.dumps(r), flush=True)
            x = weight = gy = None
            torch.cuda.empty_cache()


def lines(text):
    """Times by shape and mode; and what the other lines say of the run."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    about = {k: v for r in found if "shape" not in r for k, v in r.items()}
    return {(r["shape"], r["mode"]): r for r in found if all(op + "_ms" in r for op in OPS)}, about


def cliffs(ours, near):
    """What has less than half of the share of the limit that is the median of its neighbours."""
    shares = {}
    for (name, mode), r in near.items():
        for op in OPS:
            shares.setdefault((name.split("/")[0], mode, op), []).append(r[op + "_share"])
    return [f"{name} {mode} {op} {r[op + '_share'] / statistics.median(shares[name, mode, op]):.2f}"
            for (name, mode), r in ours.items() for op in OPS
            if (name, mode, op) in shares and r[op + "_share"] < 0.5 * statistics.median(shares[name, mode, op])]


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--modes", default="fp32,tf32,bf16,fp32_cl,tf32_cl,bf16_cl")
    parser.add_argument("--shapes", default="", help="all")
    tune = parser.add_mutually_exclusive_group()
    tune.add_argument("--tune", action="store_true", help="try our algorithms, instead of estimating their times")
    tune.add_argument("--tune-slower", action="store_true", help="try them for what is slower than PyTorch without")
    parser.add_argument("--peer")
    parser.add_argument("--json")
    parser.add_argument("--commit")
    parser.add_argument("--limit", type=float, default=0)
    parser.add_argument("--random", type=int, default=0, help="so many random parameter sets instead")
    parser.add_argument("--from", type=int, default=0, dest="first", help="of the random sets")
    parser.add_argument("--to", type=int, default=1 << 30)
    parser.add_argument("--neighbours", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sets", help="a file of shapes instead, as cuda_conv_bench reads it")
    parser.add_argument("--only-peer", action="store_true", help="PyTorch's times as JSON lines")
    args = parser.parse_args()
    if args.random and args.sets:
        parser.error("--sets is a file of shapes in place of --random's")
    if not args.bench:
        build = ROOT / "build/bench"
        for command in (["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTAPEDECK_CUDA=ON",
                         "-DTAPEDECK_BENCH=ON", "-DTAPEDECK_TESTS=OFF", "-DTAPEDECK_EXAMPLES=OFF"],
                        ["cmake", "--build", build, "--target", "cuda_conv_bench"]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        args.bench = build / "bench/cuda_conv_bench"
    what = ["--modes", args.modes, "--shapes", args.shapes, *(["--sets", args.sets] if args.sets else [])]
    if args.only_peer:
        effort = (0.3, 9, 0.01) if args.sets else (1, 30, 0.05)  # as cuda_conv_bench's
        return peer(map(json.loads, run([args.bench, "--list", *what]).splitlines()), args.modes.split(","), effort)
    peers = what
    if args.random:
        sets = dict(list(random_sets(args.random, args.seed, GPU).items())[args.first:args.to])
        near = {f"{name}/{i}": n for name, case in sets.items()
                for i, n in enumerate(neighbours(case, args.neighbours, args.seed, GPU))}
        peers, what = what + ["--sets", written(sets)], what + ["--sets", written({**sets, **near})]
    tuned = ["--tune"] if args.tune else []
    (ours, about), theirs, about_peer = lines(run([args.bench, *tuned, *what])), {}, {}
    if args.peer:
        theirs, about_peer = lines(pathlib.Path(args.peer).read_text())
    elif importlib.util.find_spec("torch"):  # in a process of its own: PyTorch keeps memory
        theirs, about_peer = lines(run([sys.executable, __file__, "--only-peer", "--bench", args.bench, *peers]))
    if args.random:
        below = cliffs({k: r for k, r in ours.items() if k[0] in sets}, {k: r for k, r in ours.items() if k[0] in near})
        ours = {k: r for k, r in ours.items() if k[0] in sets}
    losers = [(*key, op) for key, r in ours.items() for op in OPS if theirs.get(key, r)[op + "_ms"] < r[op + "_ms"]]
    tried = {}
    for mode in args.modes.split(",") if args.tune_slower else []:
        names = dict.fromkeys(shape for shape, of, _ in losers if of == mode)
        which = ["--sets", written({name: sets[name] for name in names})] if args.random else [*what, "--shapes", ",".join(names)]
        if names:
            tried.update(lines(run([args.bench, "--tune", *which, "--modes", mode]))[0])
    ratios, slow = {}, []
    print(f"{'shape':10} {'mode':8}" + "".join(f"{op:>9} ms  PyTorch  ratio" for op in OPS))
    for (shape, mode), r in ours.items():
        other = theirs.get((shape, mode))
        text = f"{shape:10} {mode:8}"
        for op in OPS:
            if other is None:
                text += f"{r[op + '_ms']:12.4f}" + 16 * " "
                continue
            ratio = other[op + "_ms"] / r[op + "_ms"]
            ratios.setdefault(mode, {}).setdefault(op, []).append(ratio)
            text += f"{r[op + '_ms']:12.4f} {other[op + '_ms']:8.4f} {ratio:6.2f}"
            if ratio < args.limit:
                slow.append(f"{shape} {mode} {op} {ratio:.2f}")
        print(text)
    means = {mode: {**{op: mean(v) for op, v in by_op.items()}, "all": mean([x for v in by_op.values() for x in v])}
             for mode, by_op in ratios.items()}
    for mode, by_op in means.items():
        print(f"geometric mean {mode:8}", "  ".join(f"{op} {v:.2f}" for op, v in by_op.items()))
    if args.tune_slower:
        left = [(theirs[shape, mode][op + "_ms"] / tried.get((shape, mode), ours[shape, mode])[op + "_ms"], shape, mode, op)
                for shape, mode, op in losers]
        left = sorted(x for x in left if x[0] < 1)
        print(f"{len(losers)} slower than PyTorch's, {len(left)} with ours tried:", ", ".join(
            f"{shape} {mode} {op} {ratio:.2f}" for ratio, shape, mode, op in left))
    if slow:
        print(f"{len(slow)} below {args.limit}:", ", ".join(slow))
    if args.random:
        print(f"{len(below)} of {len(OPS) * len(ours)} with less than half of their neighbours' share:", ", ".join(below))
        slow += below
    if args.json:
        gpu = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()[0]
        commit = args.commit or run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
        all_tried = {"tuned": True} if args.tune else {}
        head = json.dumps({"commit": commit, "gpu": gpu, "date": time.strftime("%Y-%m-%d"), **all_tried, **about, **about_peer, "geometric_means": {
            mode: {op: round(v, 3) for op, v in by_op.items()} for mode, by_op in means.items()}}, indent=1)
        times = [{**r, "pytorch": {k: round(v, 4) for k, v in theirs.get(key, {}).items() if k.endswith("_ms")},
                  **({"tried": {k: v for k, v in tried[key].items() if k.endswith(("_ms", "_kernel"))}} if key in tried else {})}
                 for key, r in ours.items()]
        pathlib.Path(args.json).write_text(head[:-2] + ',\n "times": [\n' + ",\n".join(
            "  " + json.dumps(t) for t in times) + "\n ]\n}\n")
    return 1 if slow else 0


sys.exit(main())
