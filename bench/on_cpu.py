"""What compare_cpu.py and compare_cpu_train.py share: the build, what was compared, and files of results."""
import json, os, pathlib, platform, subprocess, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads would take our turns, too


def build(target):
    """A benchmark's program, of build/bench."""
    folder = ROOT / "build/bench"
    for command in (["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTAPEDECK_BENCH=ON",
                     "-DTAPEDECK_TESTS=OFF", "-DTAPEDECK_EXAMPLES=OFF", "-DTAPEDECK_CUDA=OFF"],
                    ["cmake", "--build", folder, "-j2", "--target", target]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "bench" / target


def start(program, target):
    return subprocess.Popen([program or build(target)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)


def header():
    """Which programs on which machine; prints it."""
    import torch
    cpu = next(l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name"))
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], text=True, capture_output=True).stdout.strip()
    print(f"Tapedeck {commit}, PyTorch {torch.__version__}, {cpu}, load {os.getloadavg()[0]:.1f}")
    return {"commit": commit, "pytorch": torch.__version__, "cpu": cpu, "machine": platform.platform(),
            "date": time.strftime("%Y-%m-%d")}


def write(path, results, key):
    """Writes a dict with "rows". Where the file has results of the same commit, its rows of other keys stay."""
    path = pathlib.Path(path)
    old = json.loads(path.read_text()) if path.exists() else {}
    if old.get("commit") == results["commit"]:
        new = {key(row) for row in results["rows"]}
        results["rows"] = [row for row in old["rows"] if key(row) not in new] + results["rows"]
        if "limits" in results:
            results["limits"] = {**old.get("limits", {}), **results["limits"]}
    path.write_text(json.dumps(results, indent=1) + "\n")
    return results["rows"]
