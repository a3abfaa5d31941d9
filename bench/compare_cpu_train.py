#!/usr/bin/env python3
"""Training steps on the CPU: Tapedeck's times beside eager PyTorch's, measured in turn in one run.

    python3 -m venv /tmp/pt && /tmp/pt/bin/pip install torch numpy   # PyTorch stays out of the product
    /tmp/pt/bin/python bench/compare_cpu_train.py [--threads 1,2] [--batch 128] [--json FILE]
        [--program build/release/bench/train_bench]

Builds build/bench first. A step is forward, backward and Adam (PyTorch's is its fused one) of a VAE's decoder
(binary cross-entropy) or a DCGAN's generator (squared error). What is printed and written are medians over all
steps of all turns. "cpu profile dcgan 128 2 5" as input of train_bench prints what the ops of a step take.
"""
import argparse, json, statistics, time

import on_cpu
from compare_gpu_train import pytorch_model


def pytorch_steps(torch, name, batch, threads, seconds):
    torch.set_num_threads(threads)
    model, vae = pytorch_model(torch, name), name == "vae"
    z = torch.randn(batch, *((20,) if vae else (100, 1, 1)))
    images = torch.rand(batch, *((1, 28, 28) if vae else (3, 64, 64)))
    adam = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits if vae else torch.nn.functional.mse_loss
    times, end = [], time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        adam.zero_grad(set_to_none=True)
        loss_of(model(z), images).backward()
        adam.step()
        times.append(time.perf_counter() - start)
    return times[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2, help="of each turn")
    parser.add_argument("--program", help="a train_bench that is built already")
    parser.add_argument("--models", default="vae,dcgan")
    parser.add_argument("--json", help="file to write; rows of the same commit that it has stay")
    args = parser.parse_args()
    import torch
    ours, results = on_cpu.start(args.program, "train_bench"), on_cpu.header()
    rows = []
    for threads in map(int, args.threads.split(",")):
        for name in args.models.split(","):
            mine, theirs = [], []
            for _ in range(args.rounds):
                print("cpu", name, args.batch, threads, args.seconds, file=ours.stdin, flush=True)
                mine += json.loads(ours.stdout.readline())
                theirs += pytorch_steps(torch, name, args.batch, threads, args.seconds)
            a, b = statistics.median(mine), statistics.median(theirs)
            rows.append({"model": name, "batch": args.batch, "threads": threads, "ms": a * 1e3, "pytorch_ms": b * 1e3, "ratio": b / a})
            print(f"{name:6} {threads} threads {a * 1e3:8.2f} ms, PyTorch {b * 1e3:8.2f} ms  {b / a:5.2f}x", flush=True)
    if args.json:
        on_cpu.write(args.json, {**results, "rows": rows}, lambda row: (row["model"], row["batch"], row["threads"]))


if __name__ == "__main__":
    main()
