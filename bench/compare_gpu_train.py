#!/usr/bin/env python3
"""Training steps on a GPU: Tapedeck's images/s beside PyTorch's, eager and as CUDA graphs, in turn in one run.

    python3 bench/compare_gpu_train.py [--cases vae:128,dcgan:1024] [--seconds 1] [--json bench/results/FILE]

Builds build/cuda first, or takes --binary. A step is forward, backward and Adam (PyTorch's is its fused one)
of a VAE's decoder (binary cross-entropy) or a DCGAN's generator (squared error), on inputs that are on the GPU.
TF32 means Precision::high and PyTorch's allow_tf32, else float32 accuracy. Peak memory is of bytes in use in
the eager step. Without PyTorch only our numbers are printed.
"""
import argparse, json, os, pathlib, subprocess, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = "vae:128,dcgan:128,dcgan:1024,vae:4096"


class Ours:
    def __init__(self, binary):
        if not binary:
            build = ROOT / "build/cuda"
            for command in (["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                             "-DTAPEDECK_CUDA=ON", "-DTAPEDECK_BENCH=ON"],
                            ["cmake", "--build", build, "--target", "train_bench"]):
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            binary = build / "bench/train_bench"
        self.process = subprocess.Popen([binary], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def measure(self, model, batch, tf32, seconds):
        print(model, batch, "high" if tf32 else "highest", seconds, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def pytorch_model(torch, name):
    nn = torch.nn
    if name == "vae":
        return nn.Sequential(
            nn.Linear(20, 64 * 7 * 7), nn.ReLU(), nn.Unflatten(1, (64, 7, 7)),
            nn.ConvTranspose2d(64, 64, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 3, 1, 1))
    layers, widths = [], [100, 512, 256, 128, 64, 3]
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers.append(nn.ConvTranspose2d(a, b, 4, *((1, 0) if i == 0 else (2, 1)), bias=False))
        layers += [nn.BatchNorm2d(b), nn.ReLU()] if b > 3 else [nn.Tanh()]
    return nn.Sequential(*layers)


def pytorch_rate(torch, step, batch, seconds):
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    steps = max(20, int(seconds / max(time.perf_counter() - start, 1e-5)))
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return batch * steps / (time.perf_counter() - start)


def pytorch_measure(torch, name, batch, tf32, seconds):
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, vae = pytorch_model(torch, name).cuda(), name == "vae"
    z = torch.randn(batch, *((20,) if vae else (100, 1, 1)), device="cuda")
    images = torch.rand(batch, *((1, 28, 28) if vae else (3, 64, 64)), device="cuda")
    adam = torch.optim.Adam(model.parameters(), 1e-3, fused=True, capturable=True)
    functional = torch.nn.functional
    loss_of = functional.binary_cross_entropy_with_logits if vae else functional.mse_loss

    def step():
        adam.zero_grad(set_to_none=True)
        loss_of(model(z), images).backward()
        adam.step()

    result = {"eager": pytorch_rate(torch, step, batch, seconds)}
    result["peak_MB"] = torch.cuda.max_memory_allocated() / 2**20
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    result["graph"] = pytorch_rate(torch, graph.replay, batch, seconds)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--binary", help="train_bench, built already")
    parser.add_argument("--commit", help="what it was built from, where there is no git")
    parser.add_argument("--json", help="file to write")
    args = parser.parse_args()
    try:
        import torch
        torch.backends.cudnn.benchmark = True
        pytorch = torch.__version__
    except ImportError:
        torch = pytorch = None
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"], text=True,
                         capture_output=True).stdout.strip()
    commit = args.commit or subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], text=True,
                                           capture_output=True).stdout.strip()
    print(f"Tapedeck {commit}, PyTorch {pytorch}, {gpu}\nimages/s and MiB; x: ours over PyTorch's\n"
          f"{'case':11} {'':4} {'eager':>9} {'PyTorch':>9} {'x':>5}  {'captured':>9} {'graph':>9} {'x':>5}"
          f"  {'peak':>6} {'PyTorch':>7} {'x':>5}  driver calls")
    ours, rows = Ours(args.binary), []
    for tf32 in (False, True):
        for case in args.cases.split(","):
            model, batch = case.split(":")[0], int(case.split(":")[1])
            mine = ours.measure(model, batch, tf32, args.seconds)
            theirs = pytorch_measure(torch, model, batch, tf32, args.seconds) if torch else None
            rows.append({"model": model, "batch": batch, "tf32": tf32, "ours": mine, "pytorch": theirs})
            other = theirs or {"eager": float("nan"), "graph": float("nan"), "peak_MB": float("nan")}
            print(f"{case:11} {'TF32' if tf32 else 'FP32'} {mine['eager']:9.0f} {other['eager']:9.0f}"
                  f" {mine['eager'] / other['eager']:5.2f}  {mine['captured']:9.0f} {other['graph']:9.0f}"
                  f" {mine['captured'] / other['graph']:5.2f}  {mine['peak_MB']:6.0f} {other['peak_MB']:7.0f}"
                  f" {mine['peak_MB'] / other['peak_MB']:5.2f}  {mine['driver_allocations']}", flush=True)
    print(f"first training step {rows[0]['ours']['first_step_s']:.2f} s after the process started")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            {"commit": commit, "pytorch": pytorch, "gpu": gpu, "date": time.strftime("%Y-%m-%d"), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
