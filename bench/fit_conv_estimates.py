#!/usr/bin/env python3
"""What a GPU's estimates of convolution times (ops/conv/gpu_estimate.h) multiply their terms by.

    python3 bench/fit_conv_estimates.py --bench build/bench/bench/cuda_conv_bench [--times bench/results/fit]
        [--measure [boxes,strip] [--passes fwd,dx,dw] [--commit NAME]] [--write]

--measure, on a GPU, times 300 random layers, 60 small ones, 100 whose y has few channels (conv_sets.py) and those of
conv_shapes.h by algorithms, all or those named (direct kernels take seconds for some layers, which are left out), some
seconds to three minutes each, into a file for each: FOLDER/ALGORITHM.jsonl.gz, commit and GPU, and then microseconds of
the passes that the algorithm computes. Those whose kernels did not change keep theirs, and so do passes that are not
among --passes. (Of the 100 the files have times of thin products, columns, tensor and wgmma's.)
Without it, on any machine, factors are fitted to the times of all algorithms: sums of terms times factors of at least 0
(the constant: 2 microseconds), with the least squares of logarithms, of which large ones count less; and then those of
a pass and mode together, such that the chosen algorithms are fast (refine()). --write writes
ops/conv/gpu_estimate_factors.h. Needs SciPy.

For each pass and mode it prints how much slower than the fastest algorithm the chosen one is, as a geometric mean:
with the factors of all layers, and of those that a fifth of the layers had no part in (which is judged); and the worst.
"""
import argparse, gzip, json, math, os, pathlib, subprocess, sys, time

from conv_sets import GPU, SMALL_GPU, THIN_GPU, random_sets, written

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALGORITHMS = ("tensor", "strip", "direct", "depthwise", "columns", "windows", "boxes", "halves", "gathered", "rows", "thin")
# Ways of wgmma, which is estimated as the least of them: what their kernels are called, and modes that they have.
WAYS = {"windows": "wgmma (windows", "boxes": "wgmma (boxes of pixels", "halves": "wgmma (boxes of scaled halves",
        "gathered": "wgmma (boxes of", "rows": "wgmma (rows"}
MODES_OF = {"boxes": "tf32,bf16,tf32_cl,bf16_cl", "halves": "fp32,tf32,fp32_cl,tf32_cl", "gathered": "fp32,tf32,bf16", "rows": "tf32,bf16"}
FOR_ALL = ("tensor", "strip", "direct", "windows")  # layers
MODES = (("fp32", "tf32", "bf16"), ("fp32_cl", "tf32_cl", "bf16_cl"))
PASSES = ("fwd", "dx", "dw")
ALL_MODES = ",".join(mode for of_layout in MODES for mode in of_layout)
FOR_DIRECT = "kb75,kb81,depthwise,dcgan1,dcgan2,dcgan3,dcgan4,dcgan5,vae1,vae2"
FEW = 10  # layers, with which nothing is fitted
FOLDS = 5
NAMED = 6  # times as much count the layers of conv_shapes.h
LAUNCH = 2  # microseconds, the least constant


def computes(algorithm, kernel):
    """Whether a kernel, as explain() tells it, is the algorithm's: where that cannot compute a call another one does."""
    if kernel == "direct (thin)":
        return False
    if algorithm in WAYS:
        return kernel.startswith(WAYS[algorithm]) and ("gathered from nchw" in kernel) == (algorithm == "gathered")
    return kernel.split(" ")[0] == algorithm


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run(command, **more):
    return subprocess.run(list(map(str, command)), env={**os.environ, **more}, check=True, stdout=subprocess.PIPE, text=True).stdout


def bench(command, algorithm=None):
    return run(command, **({"TAPEDECK_CONV_ALGORITHM": algorithm} if algorithm else {}))


def sets():
    small = {f"{name}s": case for name, case in random_sets(60, 1, SMALL_GPU).items()}
    thin = {f"{name}t": case for name, case in random_sets(100, 2, THIN_GPU).items()}
    return written({**random_sets(300, 1, GPU), **small, **thin})


def passes_of(algorithm):
    """The others are another algorithm's."""
    return {"gathered": ("fwd", "dx"), "rows": ("dw",)}.get(algorithm, PASSES)


def only(algorithm, passes):
    return ["--passes", ",".join(passes), "--kernel", WAYS.get(algorithm, algorithm)]


def times_file(folder, algorithm):
    return folder / f"{algorithm}.jsonl.gz"


def read_times(folder, algorithm):
    return lines(gzip.decompress(times_file(folder, algorithm).read_bytes()).decode())


def measure(command, folder, algorithm, passes, about):
    shapes = ["--shapes", FOR_DIRECT] if algorithm == "direct" else []
    found, commits = {}, dict.fromkeys(passes, about["commit"])
    if passes != passes_of(algorithm) and times_file(folder, algorithm).exists():
        before, *times = read_times(folder, algorithm)
        if before["gpu"] != about["gpu"]:
            sys.exit(f"{algorithm}'s other passes were timed on an {before['gpu']}: time all of them")
        commits = {**dict.fromkeys(PASSES, before["commit"]), **before.get("passes", {}), **commits}
        about = {**about, "commit": before["commit"], "passes": commits}
        for line in times:
            found[line["shape"], line["mode"]] = {key: v for key, v in line.items() if key not in passes}
    for what in (["--sets", sets()], shapes):
        of_all = ["--modes", MODES_OF.get(algorithm, ALL_MODES), *only(algorithm, passes), *what]
        for line in lines(bench([command, *of_all], algorithm)):
            if "shape" not in line:  # what copies take
                continue
            of = {op: round(line[f"{op}_ms"] * 1e3, 2) for op in passes if computes(algorithm, line.get(f"{op}_kernel", ""))}
            key = line["shape"], line["mode"]
            found[key] = {**found.get(key, {"shape": key[0], "mode": key[1]}), **of}
    kept = [about, *(line for line in found.values() if any(op in line for op in PASSES))]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in kept).encode()
    part = times_file(folder, algorithm).with_suffix(".part")
    part.write_bytes(gzip.compress(text, mtime=0))
    part.replace(times_file(folder, algorithm))
    print(f"{algorithm}: {len(kept) - 1} pairs of layer and mode")


def fit(layers):
    """The factors of layers, each (terms, microseconds, weight)."""
    import numpy  # here, because measuring does without
    from scipy.optimize import least_squares
    terms, times, weights = (numpy.array(v, float) for v in zip(*layers))
    scale = terms.max(axis=0)
    used = scale > 0
    terms = terms[:, used] / scale[used]

    def residuals(logs):
        return weights * (numpy.log(terms @ numpy.exp(logs)) - numpy.log(times))

    starts = (numpy.full(terms.shape[1], math.log(part * numpy.median(times) / terms.shape[1])) for part in (0.3, 2))
    least = numpy.full(terms.shape[1], -16.0)
    least[0] = math.log(LAUNCH)
    best = min((least_squares(residuals, numpy.maximum(start, least + 0.01), loss="soft_l1", f_scale=0.2, bounds=(least, 16))
                for start in starts), key=lambda result: result.cost)
    factors = numpy.zeros(len(scale))
    factors[used] = numpy.exp(best.x) / scale[used]
    factors[factors * scale < 0.01 * times.min()] = 0  # which matter nowhere
    return numpy.trim_zeros(factors, "b").tolist()


def refine(factors, calls):
    """Factors near these, {algorithm: factors}, whose choices are faster for calls, each ({algorithm: (terms, microseconds)},
    weight): with the least logarithms of how much slower than the fastest they are, and of how far off estimates are, as
    before. So that there is a gradient, an algorithm is chosen with a probability that falls by e where its estimate is
    kSharp longer."""
    import numpy
    from scipy.optimize import minimize
    kSharp, kOff = 0.07, 0.2
    names = list(factors)
    calls = [(timed, weight) for timed, weight in calls if sum(a in timed for a in names) > 1]
    count = max(map(len, factors.values()))
    start = numpy.array([factors[a] + [0] * (count - len(factors[a])) for a in names])
    terms, times = numpy.zeros((len(calls), *start.shape)), numpy.full((len(calls), len(names)), numpy.inf)
    for i, (timed, _) in enumerate(calls):
        for j, a in enumerate(names):
            if a in timed:
                terms[i, j], times[i, j] = timed[a][0][:count], timed[a][1]
    weights = numpy.array([weight for _, weight in calls], float)
    known, used = times < numpy.inf, start > 0
    slower = numpy.log(numpy.where(known, times, 1) / times.min(axis=1, keepdims=True))
    slower[~known] = 0
    of_error = numpy.where(known, weights[:, None] * numpy.exp(-slower), 0)
    log_times = numpy.log(numpy.where(known, times, 1))
    each = terms * start  # microseconds of a term, by which a change of its factor's logarithm is multiplied

    def cost(change):
        by = numpy.where(used, 0.0, 1.0)
        by[used] = numpy.exp(change)
        parts = each * by
        estimates = parts.sum(axis=2)
        estimates[~known] = 1
        logs = numpy.log(estimates)
        chosen = numpy.where(known, -logs / kSharp, -numpy.inf)
        chosen = numpy.exp(chosen - chosen.max(axis=1, keepdims=True))
        chosen /= chosen.sum(axis=1, keepdims=True)
        lost = (chosen * slower).sum(axis=1)
        error = of_error * (logs - log_times)
        root = numpy.sqrt(1 + (error / kOff) ** 2)
        total = (weights**0.5 * lost).sum() + kOff**2 * (root - 1).sum()
        by_log = -(weights**0.5)[:, None] / kSharp * chosen * (slower - lost[:, None]) + of_error * error / root
        return total, ((by_log / estimates)[:, :, None] * parts).sum(axis=0)[used]

    least = numpy.full(start.shape, -math.inf)
    least[:, 0] = math.log(LAUNCH) - numpy.log(start[:, 0])
    change = minimize(cost, numpy.zeros(used.sum()), jac=True, method="L-BFGS-B", bounds=[(v, None) for v in least[used]],
                      options={"maxiter": 400}).x
    start[used] *= numpy.exp(change)
    start[start * terms.max(axis=0) < 0.01 * times.min(axis=0)[:, None]] = 0  # which matter nowhere
    return {a: numpy.trim_zeros(row, "b").tolist() for a, row in zip(names, start)}


def mean(logs):
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def estimate(factors, terms):
    return sum(factor * term for factor, term in zip(factors, terms))


class Layers:
    """Terms and times by (layer, mode, pass), {algorithm: (terms, microseconds)}."""

    def __init__(self, command, folder):
        terms = {}
        for what in (["--sets", sets()], []):
            for line in lines(bench([command, "--terms", "--modes", ALL_MODES, *what])):
                terms[line["shape"], line["mode"], line["op"], line["algorithm"]] = line["terms"]
        self.of = {}
        gpus = set()
        for algorithm in ALGORITHMS:
            about, *times = read_times(folder, algorithm)
            commits = ", ".join(dict.fromkeys(about.get("passes", {"all": about["commit"]}).values()))
            print(f"{algorithm}: {len(times)} pairs of layer and mode, of {commits} on an {about['gpu']}")
            gpus.add(about["gpu"])
            for line in times:
                for op in PASSES:
                    key = line["shape"], line["mode"], op
                    if op in line and (*key, algorithm) in terms:
                        self.of.setdefault(key, {})[algorithm] = (terms[(*key, algorithm)], line[op])
        if len(gpus) > 1:
            sys.exit(f"{folder} has times of several GPUs, which one fit cannot have: {', '.join(sorted(gpus))}")
        self.names = sorted({name for name, _, _ in self.of})

    def samples(self, mode, op, algorithm, fold=None):
        """Of all folds but one, (terms, microseconds, weight): what is slower than other algorithms counts less. The
        layers of conv_shapes.h are in no fold."""
        found = []
        for at, name in enumerate(self.names):
            random = name.startswith("random")
            times = self.of.get((name, mode, op), {})
            timed = times.get(algorithm)
            if timed and not (random and fold is not None and at % FOLDS == fold):
                least = min(time for _, time in times.values())
                found.append((*timed, (1 if random else NAMED) * least / timed[1]))
        return found

    def calls(self, mode, op, fold=None):
        """Of all folds but one, ({algorithm: (terms, microseconds)}, weight)."""
        return [(self.of.get((name, mode, op), {}), 1 if name.startswith("random") else NAMED) for at, name in enumerate(self.names)
                if fold is None or not name.startswith("random") or at % FOLDS != fold]


def judge(layers, mode, op, factors, of_fold):
    """Prints what choices by the factors cost."""
    slower, unseen, worst = [], [], []
    for at, name in enumerate(layers.names):
        timed = layers.of.get((name, mode, op), {})
        candidates = [a for a in timed if a in factors]
        if len(candidates) < 2:
            continue
        least = min(timed[a][1] for a in candidates)

        def chosen(by):
            return timed[min(candidates, key=lambda a: estimate(by[a], timed[a][0]))][1] / least

        slower.append(math.log(chosen(factors)))
        if name.startswith("random"):
            unseen.append(math.log(chosen(of_fold[at % FOLDS])))
        worst.append((chosen(factors), name))
    worst = ", ".join(f"{name} {ratio:.2f}" for ratio, name in sorted(worst, reverse=True)[:3])
    print(f"{mode:8} {op:4} {mean(slower):.3f} {mean(unseen):.3f} ({len(slower)} layers)  {worst}")


def write_header(table):
    """The table into gpu_estimate_factors.h."""
    path = ROOT / "ops/conv/gpu_estimate_factors.h"
    text = path.read_text()
    name = "kFactors[2][3][3][std::size(kEstimated)] = "
    begin = text.index(name) + len(name)
    end = text.index(";", begin)
    path.write_text(text[:begin] + table + text[end:])
    subprocess.run(["clang-format", "-i", path], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--times", type=pathlib.Path, default=ROOT / "bench/results/fit")
    parser.add_argument("--measure", nargs="?", const=",".join(ALGORITHMS), help="all, or some with commas between them")
    parser.add_argument("--passes", default=",".join(PASSES), help="what --measure times, others keep their times")
    parser.add_argument("--commit", help="of what is measured; else that of the repository")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.measure:
        for flag, given, known in (("--measure", args.measure, ALGORITHMS), ("--passes", args.passes, PASSES)):
            unknown = set(given.split(",")) - set(known)
            if unknown:
                parser.error(f"{flag} knows {', '.join(known)}, not {', '.join(sorted(unknown))}")
        gpu = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()[0]
        commit = args.commit or run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
        about = {"commit": commit, "gpu": gpu, "date": time.strftime("%Y-%m-%d")}
        for algorithm in args.measure.split(","):
            passes = tuple(p for p in passes_of(algorithm) if p in args.passes.split(","))
            if passes:
                measure(args.bench, args.times, algorithm, passes, about)
        return
    missing = [a for a in ALGORITHMS if not times_file(args.times, a).exists()]
    if missing:
        parser.error(f"{args.times} has no times of {', '.join(missing)} yet: see --measure")
    layers = Layers(args.bench, args.times)
    print("mode     pass slower than the fastest: all, unseen; worst")
    table = []
    for of_layout in MODES:
        passes = []
        for op in PASSES:
            precisions = []
            for mode in of_layout:
                factors = {}
                of_fold = [{} for _ in range(FOLDS)]
                for algorithm in ALGORITHMS:
                    samples = layers.samples(mode, op, algorithm)
                    if len(samples) < FEW:
                        assert algorithm not in FOR_ALL, (mode, op, algorithm)
                        continue
                    factors[algorithm] = fit(samples)
                    for fold in range(FOLDS):
                        of_fold[fold][algorithm] = fit(layers.samples(mode, op, algorithm, fold))
                factors = refine(factors, layers.calls(mode, op))
                of_fold = [refine(of_fold[fold], layers.calls(mode, op, fold)) for fold in range(FOLDS)]
                judge(layers, mode, op, factors, of_fold)
                rows = (", ".join(f"{v:.3g}" for v in factors.get(a, [])) for a in ("wgmma", *ALGORITHMS))  # kEstimated
                precisions.append("{{" + "}, {".join(rows) + "}}")
            passes.append("{" + ", ".join(precisions) + "}")
        table.append("{" + ", ".join(passes) + "}")
    if args.write:
        write_header("{" + ", ".join(table) + "}")


if __name__ == "__main__":
    sys.exit(main())
