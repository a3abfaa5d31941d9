"""Random parameter sets of ConvTranspose2d, and their neighbours, for compare_cpu.py and compare_gpu.py.

A set is (n, ci, h, w, co, kernel, stride, padding, output_padding, dilation, groups), sizes as pairs or as one number.
"""
import atexit, os, random, tempfile

# Of all kinds, of 1e7 to 1e9 FLOP or 1 to 100 MB.
CPU = {"kernel": range(1, 6), "stride": [1, 1, 2, 2, 3, 4], "dilation": [1, 1, 1, 2, 3], "groups": [1, 1, 1, 1, 2, 4, 16],
       "channels": [1, 1, 2, 3, 4, 8, 16, 24, 32, 64, 100, 128], "batch": [1, 2, 4, 8, 16, 32],
       "size": [1, 4, 7, 8, 15, 16, 28, 32, 56, 64], "flops": (1e7, 1e9, 2e9), "bytes": (1e6, 1e8, 2e8)}
# The same on a GPU: larger, with larger kernels and strides, odd channels and widths.
GPU = {"kernel": [1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9], "stride": [1, 1, 2, 2, 2, 3, 4, 5], "dilation": [1, 1, 1, 2, 3],
       "groups": [1, 1, 1, 1, 1, 2, 4, 16], "channels": [1, 3, 8, 16, 17, 32, 33, 48, 64, 64, 96, 100, 128, 256, 512],
       "batch": [1, 1, 2, 8, 16, 32, 64, 128], "size": [1, 4, 7, 8, 13, 16, 28, 31, 32, 56, 64, 100, 128, 256],
       "flops": (3e8, 3e10, 6e10), "bytes": (1e7, 5e8, 1e9)}
# And small ones, of which what a call costs besides is most.
SMALL_GPU = {**GPU, "batch": [1, 1, 2, 4], "size": [1, 4, 7, 8, 13, 16, 28, 32], "channels": [1, 3, 8, 16, 33, 64, 100],
             "flops": (1e5, 3e8, 6e8), "bytes": (1e4, 1e7, 2e7)}
# And those whose y has few channels.
THIN_GPU = {**GPU, "kernel": [1, 2, 3, 3, 4, 4, 5, 5, 6, 7], "groups": [1], "channels": [16, 24, 32, 48, 64, 64, 96, 100, 128, 256],
            "channels of y": [1, 1, 2, 3, 3, 4], "size": [7, 8, 14, 16, 28, 28, 31, 32, 50, 56, 62, 64, 100, 128],
            "flops": (1e8, 1e10, 2e10), "bytes": (2e6, 1.5e8, 2e8)}


def pair(v):
    return v if isinstance(v, tuple) else (v, v)


def random_sets(count, seed, kinds=CPU):
    """So many sets by name."""
    rng, sets = random.Random(seed), {}
    while len(sets) < count:
        kernel = (rng.choice(kinds["kernel"]), rng.choice(kinds["kernel"]))
        stride, dilation = [rng.choice(kinds["stride"]) for _ in range(2)], [rng.choice(kinds["dilation"]) for _ in range(2)]
        padding = tuple(rng.randint(0, d * (k - 1)) for k, d in zip(kernel, dilation))
        extra = tuple(rng.randint(0, max(s, d) - 1) if rng.random() < 0.3 else 0 for s, d in zip(stride, dilation))
        groups = rng.choice(kinds["groups"])
        ci, co = (groups * rng.choice(kinds.get(of, kinds["channels"])) for of in ("channels", "channels of y"))
        n, h, w = rng.choice(kinds["batch"]), rng.choice(kinds["size"]), rng.choice(kinds["size"])
        case = (n, ci, h, w, co, kernel, tuple(stride), padding, extra, tuple(dilation), groups)
        if is_suitable(case, kinds):
            sets[f"random{len(sets)}"] = case
    return sets


def is_suitable(case, kinds):
    n, ci, h, w, co, kernel, stride, padding, extra, dilation, groups = case
    out = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1
           for i, s, p, d, k, e in zip((h, w), stride, padding, dilation, kernel, extra)]
    if min(out) < 1 or any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
        return False
    flops = 2 * n * ci * h * w * co // groups * kernel[0] * kernel[1]
    size = 4 * n * (ci * h * w + co * out[0] * out[1])
    (least_flops, flops_to, most_flops), (least_size, size_to, most_size) = kinds["flops"], kinds["bytes"]
    return (least_flops < flops < flops_to or least_size < size < size_to) and flops <= most_flops and size <= most_size


def neighbours(case, count, seed, kinds=CPU):
    """Sets that differ from one in one parameter, by little."""
    n, ci, h, w, co, *sizes, groups = case
    rng, found = random.Random(seed), []
    for _ in range(100):
        near = [n, ci, h, w, co, *sizes, groups]
        which = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 9))
        if which in (1, 4):
            near[which] += groups * rng.choice((-2, -1, 1, 2, 8))
        elif which < 4:
            near[which] += rng.choice((-1, 1, 3))
        else:
            sides = list(near[which])
            sides[rng.randrange(2)] += rng.choice((-1, 1))
            near[which] = tuple(sides)
        low = min(near[1], near[2], near[3], near[4], near[0], *near[5], *near[6], *near[9], 1 + min(near[7]))
        if low > 0 and tuple(near) not in found and is_suitable(near, kinds):
            found.append(tuple(near))
        if len(found) == count:
            break
    return found


def words(case):
    """A set as the benchmarks read it: N CI H W CO KH KW SH SW PH PW OPH OPW DH DW GROUPS."""
    n, ci, h, w, co, *sizes, groups = case
    return " ".join(map(str, (n, ci, h, w, co, *(side for size in sizes for side in pair(size)), groups)))


def written(sets):
    """A temporary file of sets, for --sets."""
    with tempfile.NamedTemporaryFile("w", suffix=".sets", delete=False) as file:
        file.writelines(f"{name} {words(case)}\n" for name, case in sets.items())
    atexit.register(os.unlink, file.name)
    return file.name
