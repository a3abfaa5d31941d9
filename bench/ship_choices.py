#!/usr/bin/env python3
"""Makes choices of the autotuner those that the library comes with: ops/conv/shipped_choices.h.

    TAPEDECK_CONV_AUTOTUNE=choices cuda_conv_bench --tune   # on each GPU that choices are for
    bench/ship_choices.py choices [more ...]

Of a GPU that is in these files, they replace what is there; other GPUs' choices stay. Only what is faster than
the estimated choice is kept: the rest is estimated anyway.
"""
import argparse
import os
import pathlib

HEADER = pathlib.Path(__file__).parents[1] / "ops/conv/shipped_choices.h"
FIRST_LINE = "tapedeck conv choices 1"
BEGIN, END = 'R"(', ')";'


def lines_of(text: str, source: str) -> list[str]:
    first, *lines = text.splitlines()
    if first != FIRST_LINE:
        raise SystemExit(f'{source}: the first line is "{first}"; legal is "{FIRST_LINE}"')
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    measured = [line for file in arguments.files for line in lines_of(file.read_text(), str(file))]
    gpus = {line.split("\t")[0] for line in measured}
    header = HEADER.read_text()
    begin, end = header.index(BEGIN) + len(BEGIN), header.index(END)
    kept = [line for line in lines_of(header[begin:end], str(HEADER)) if line.split("\t")[0] not in gpus]

    def is_faster(line: str) -> bool:
        microseconds, estimated = map(float, line.split("\t")[-2:])
        return microseconds < estimated

    fastest = {}
    for line in sorted(filter(is_faster, measured), key=lambda line: float(line.split("\t")[-2]), reverse=True):
        fastest[tuple(line.split("\t")[:7])] = line
    lines = sorted(kept + list(fastest.values()))
    text = "".join(line + "\n" for line in [FIRST_LINE, *lines])
    beside = HEADER.with_suffix(".tmp")
    beside.write_text(header[:begin] + text + header[end:])
    os.replace(beside, HEADER)
    print(f"{HEADER}: {len(lines)} choices, {len(text)} bytes")


if __name__ == "__main__":
    main()
