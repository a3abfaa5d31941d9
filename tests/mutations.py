#!/usr/bin/env python3
"""Makes the classic mistakes of transposed convolution on purpose, one at a time, and writes down which
test caught each: docs/mutations.md.

    tests/mutations.py [NUMBER...]
    tests/mutations.py --check

works on a copy of the tree's last commit in build/mutations, for which it takes half an hour on two cores;
with numbers (of the rows, from 0) it only prints what becomes of those. It exits with 1 when a mistake
compiles and its test passes, or when the text that it replaces is no longer there. --check builds nothing:
it only looks for the texts, and for the tests' names, in the tree as it is.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutations"

# What is wrong, where, the test of tests/conv_mistake_test.cpp that must fail, the text whose last
# occurrence is replaced, and what by.
MUTATIONS = [
    ("taps that the stride does not divide are dropped (forward)",
     "ops/conv/reference.cpp", "DroppedTap",
     "const std::int64_t ih = g.h.input(oh, kh);\n        if (ih < 0) continue;",
     "const std::int64_t ih = g.h.input(oh, kh);\n        if (ih < 0 || kh * g.h.dilation % g.h.stride != 0) continue;"),
    ("the same, along w in the input gradient",
     "ops/conv/reference.cpp", "DroppedTap",
     "for (std::int64_t kw = g.w.tap_begin(iw); kw < g.w.tap_end(iw); ++kw) {\n          sum",
     "for (std::int64_t kw = g.w.tap_begin(iw); kw < g.w.tap_end(iw); kw += g.w.stride) {\n          sum"),
    ("only phase 0 has taps",
     "ops/conv/plan.cpp", "DroppedTap",
     "if (taps == 0) continue;",
     "if (taps == 0 || phase != 0) continue;"),
    ("a phase keeps its first tap only",
     "ops/conv/plan.cpp", "DroppedTap",
     "std::min(taps, ConvAxis::floor_div(top, plan.slot_step) + 1)",
     "std::min<std::int64_t>(1, ConvAxis::floor_div(top, plan.slot_step) + 1)"),
    ("the weight gradient skips taps that the stride does not divide",
     "ops/conv/weight_grad.cpp", "DroppedTap",
     "if (begin >= end) return;",
     "if (begin >= end || unit.kh * g_.h.dilation % g_.h.stride != 0) return;"),
    ("floor_div truncates",
     "ops/conv_transpose2d_geometry.h", "TruncatedDivision",
     "return a / b - (a % b < 0 ? 1 : 0);",
     "return a / b;"),
    ("a negative position is divided before it is sorted out",
     "ops/conv_transpose2d_geometry.h", "TruncatedDivision",
     "return t >= 0 && t % stride == 0 && t / stride < in ? t / stride : -1;",
     "return t / stride >= 0 && t / stride < in ? t / stride : -1;"),
    ("a plan's count of slots truncates",
     "ops/conv/plan.cpp", "TruncatedDivision",
     "ConvAxis::floor_div(top, plan.slot_step) + 1",
     "top / plan.slot_step + 1"),
    ("the kernel's rows are flipped (forward)",
     "ops/conv/reference.cpp", "FlippedKernel",
     "&weight.at(first, co_in_group, kh, kw)",
     "&weight.at(first, co_in_group, g.h.kernel - 1 - kh, kw)"),
    ("the weight gradient's columns are flipped",
     "ops/conv/reference.cpp", "FlippedKernel",
     "const std::int64_t left = g.w.input_begin(kw),",
     "kw = g.w.kernel - 1 - kw;\n      const std::int64_t left = g.w.input_begin(kw),"),
    ("slots take a phase's taps forwards",
     "ops/conv/plan.cpp", "FlippedKernel",
     "base[static_cast<std::size_t>(k)] = slot;\n    for (std::int64_t j = (a.kernel - 1 - k) / step; j >= 0; --j) {",
     "base[static_cast<std::size_t>(k)] = slot;\n    for (std::int64_t j = 0; j <= (a.kernel - 1 - k) / step; ++j) {"),
    ("the input gradient's slots run backwards",
     "ops/conv/plan.cpp", "FlippedKernel",
     "plan.slot_of_tap.push_back(k);",
     "plan.slot_of_tap.push_back(a.kernel - 1 - k);"),
    ("outputs are shifted by output_padding",
     "ops/conv_transpose2d_geometry.cpp", "ShiftedByOutputPadding",
     "  a.out = least + output_padding;",
     "  a.out = least + output_padding;\n  a.padding -= std::min(output_padding, a.padding);"),
    ("the extra outputs of output_padding stay the bias",
     "ops/conv/plan.cpp", "ShiftedByOutputPadding",
     "    if (taps == 0) continue;",
     "    if (taps == 0 || o >= (a.in - 1) * a.stride - 2 * a.padding + a.dilation * (a.kernel - 1) + 1) continue;"),
    ("the weight is read as [co,ci/groups,...]",
     "ops/conv/reference.cpp", "WeightReadAsOfAConvolution",
     "&weight.at(first, co_in_group, kh, kw), weight.strides[0]",
     "&weight.data[(co * g.group_ci() * g.h.kernel + kh) * g.w.kernel + kw], g.h.kernel * g.w.kernel"),
    ("the fast kernels read it so",
     "ops/conv/plan.h", "WeightReadAsOfAConvolution",
     "direction == Direction::transposed\n",
     "direction != Direction::transposed\n"),
    ("the fast weight gradient is written so",
     "ops/conv/weight_grad.cpp", "WeightReadAsOfAConvolution",
     "(lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_)",
     "(!lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_)"),
    ("the convolution's index formula",
     "ops/conv/reference.cpp", "IndexFormulaOfAConvolution",
     "const std::int64_t iw = g.w.input(ow, kw);\n          if (iw < 0) continue;",
     "const std::int64_t iw = ow * g.w.stride - g.w.padding + kw * g.w.dilation;\n          if (iw < 0 || iw >= g.w.in) continue;"),
    ("a phase reads q + delta(k)",
     "ops/conv/plan.cpp", "IndexFormulaOfAConvolution",
     "(o + a.padding) / a.stride - a.delta(k);",
     "(o + a.padding) / a.stride + a.delta(k) - a.padding;"),
    ("the output size leaves dilation out",
     "ops/conv_transpose2d_geometry.cpp", "DilationLeftOutOfTheSize",
     "a.dilation * (a.kernel - 1) + 1 - 2 * a.padding;",
     "a.kernel - 2 * a.padding;"),
    ("image 0 is read for every image",
     "ops/conv/reference.cpp", "OnlyBatchZero",
     "&in.at(n, first, ih, iw)",
     "&in.at(0, first, ih, iw)"),
    ("the fast kernels read image 0 for every image",
     "ops/conv/windows.cpp", "OnlyBatchZero",
     "pixels.data + item.image * pixels.image_step +",
     "pixels.data +"),
    ("the weight gradient stops after image 0",
     "ops/conv/reference.cpp", "OnlyBatchZero",
     "for (std::int64_t n = 0; n < g.n; ++n) {",
     "for (std::int64_t n = 0; n < std::min<std::int64_t>(g.n, 1); ++n) {"),
    ("the weight gradient stops after image 0",
     "ops/conv/weight_grad.cpp", "OnlyBatchZero",
     "{chunk.images, end - begin, count},",
     "{1, end - begin, count},"),
    ("minimal filtering takes a phase's taps forwards",
     "ops/conv/winograd_plan.cpp", "FlippedKernel",
     "(transposed ? taps - 1 - t : t) * a.stride",
     "(transposed ? t : taps - 1 - t) * a.stride"),
    ("a sign of its map to results is wrong",
     "ops/micro/winograd.inl", "DroppedTap",
     "y(0) = x(0) + x(1), y(1) = x(1) + x(2);\n    if constexpr (R == 3) y(0)",
     "y(0) = x(0) + x(1), y(1) = x(1) - x(2);\n    if constexpr (R == 3) y(0)"),
    ("it drops a phase's last tap",
     "ops/conv/winograd_plan.cpp", "DroppedTap",
     "for (std::int64_t t = begin; t < end; ++t) {",
     "for (std::int64_t t = begin; t < std::max(begin + 1, end - 1); ++t) {"),
    ("it leaves padding out",
     "ops/conv/winograd_plan.cpp", "IndexFormulaOfAConvolution",
     "(p + a.padding) / a.stride - a.delta(first)",
     "p / a.stride - a.delta(first)"),
    ("it reads image 0 for every image",
     "ops/conv/winograd.cpp", "OnlyBatchZero",
     "group + n * image_step + (h - first_row)",
     "group + (h - first_row)"),
    ("its weight gradient stops after image 0",
     "ops/conv/winograd_weight_grad.cpp", "OnlyBatchZero",
     "return block.images * tile_rows(phase, block) * phase.w->tiles;",
     "return std::min<std::int64_t>(1, block.images) * tile_rows(phase, block) * phase.w->tiles;"),
    ("its weight gradient is written as of a convolution",
     "ops/conv/winograd_weight_grad.cpp", "WeightReadAsOfAConvolution",
     "(lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_)",
     "(!lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_)"),
    ("rows of single channels are shifted the wrong way",
     "ops/micro/pairs.inl", "DroppedTap",
     "constexpr int kShift = -PairTap<At, k>::kHalf;",
     "constexpr int kShift = PairTap<At, k>::kHalf;"),
    ("their weight gradient stops after image 0",
     "ops/conv/depthwise.cpp", "OnlyBatchZero",
     "last = g.n * (part + 1) / parts;",
     "last = std::min<std::int64_t>(1, g.n * (part + 1) / parts);"),
    ("planes are shifted the wrong way",
     "ops/conv/planes.cpp", "IndexFormulaOfAConvolution",
     "      at = -at;",
     "      at = at;"),
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def build():
    return run(["cmake", "--build", COPY / "build", "--target", "conv_mistake_test"])


def make_copy():
    if not COPY.exists():
        run(["git", "-C", ROOT, "worktree", "prune"], check=True)
        run(["git", "-C", ROOT, "worktree", "add", "--detach", COPY], check=True)
    run(["git", "-C", COPY, "checkout", "--force", "--detach",
         run(["git", "-C", ROOT, "rev-parse", "HEAD"]).stdout.strip()], check=True)
    run(["cmake", "-S", COPY, "-B", COPY / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
         "-DTAPEDECK_CUDA=OFF"], check=True)


def tests_that_fail():
    try:
        test = run([COPY / "build" / "tests" / "conv_mistake_test"], timeout=300)
    except subprocess.TimeoutExpired:
        return {"ran for over 300 s"}
    failed = set(re.findall(r"\[  FAILED  \] ClassicMistake\.(\w+)", test.stdout))
    return failed or ({f"exit {test.returncode}"} if test.returncode else set())


def check():
    tests = (ROOT / "tests" / "conv_mistake_test.cpp").read_text()
    gone = []
    for n, (what, file, test, old, _) in enumerate(MUTATIONS):
        if not (ROOT / file).exists() or old not in (ROOT / file).read_text():
            gone.append(f"{n:2} {file}: {what}: the text to replace is gone:\n{old}")
        if f"ClassicMistake, {test})" not in tests:
            gone.append(f"{n:2} ClassicMistake.{test} is gone")
    if gone:
        sys.exit("\n".join(gone))
    print(f"{len(MUTATIONS)} mistakes can be made")


def verdict(file, test, old, new):
    path = COPY / file
    text = path.read_text()
    at = text.rfind(old)
    if at < 0:
        return "the text to replace is gone"
    path.write_text(text[:at] + new + text[at + len(old):])
    try:
        if build().returncode:
            return "does not compile"
        failed = tests_that_fail()
        return "caught" if test in failed else f"MISSED by {test}; failed: {sorted(failed)}"
    finally:
        path.write_text(text)


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    numbers = [int(n) for n in sys.argv[1:]] or range(len(MUTATIONS))
    make_copy()
    if build().returncode or tests_that_fail():
        sys.exit("the tests do not pass without a mistake")
    rows, bad = [], 0
    for n in numbers:
        what, file, test, old, new = MUTATIONS[n]
        result = verdict(file, test, old, new)
        print(f"{n:2} {file}: {what}: {result}", flush=True)
        bad += result != "caught"
        rows.append(f"| {what} | `{file}` | `ClassicMistake.{test}` |\n")
    if bad:
        sys.exit(f"{bad} not caught")
    if len(rows) == len(MUTATIONS):
        (ROOT / "docs" / "mutations.md").write_text(HEAD + "".join(rows))


HEAD = """# Classic mistakes, made on purpose

Each row is a mistake put into the source, one at a time by `tests/mutations.py`, and the test of
`tests/conv_mistake_test.cpp` that failed for it. The tests run on the reference kernels and on the fast
ones with every instruction set of the machine, so a mistake in one kernel cannot hide behind another.

| mistake | where | caught by |
|---|---|---|
"""

if __name__ == "__main__":
    main()
