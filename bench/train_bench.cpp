// The training steps of compare_gpu_train.py and compare_cpu_train.py: a VAE's and a DCGAN's decoder with
// Adam.
//
// Reads lines and answers each with one line of JSON, or with the tape of the last of some steps:
//   <vae|dcgan> <batch> <highest|high> <seconds>        on the GPU, eager and captured, in that precision
//   profile <vae|dcgan> <batch> <highest|high> <steps>  the tape of eager steps there; for ncu, too
//   cpu <vae|dcgan> <batch> <threads> <seconds>         seconds of single steps
//   cpu profile <vae|dcgan> <batch> <threads> <steps>
#include <chrono>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <tapedeck/tapedeck.h>

#include "training.h"

using namespace tapedeck;
using bench::Training;

namespace {

const Device kCuda{DeviceType::cuda};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
const double start_of_process = now();

/// Steps a second, after a warm-up; counts the driver's allocations in between.
double rate(double seconds, const std::function<void()>& step, std::uint64_t& driver_calls) {
  for (int i = 0; i < 5; ++i) step();
  synchronize(kCuda);
  double begin = now();
  step();
  synchronize(kCuda);
  const int steps = std::max(20, static_cast<int>(seconds / std::max(now() - begin, 1e-5)));
  const std::uint64_t before = memory_stats(kCuda).device_allocations;
  begin = now();
  for (int i = 0; i < steps; ++i) step();
  synchronize(kCuda);
  driver_calls += memory_stats(kCuda).device_allocations - before;
  return steps / (now() - begin);
}

void measure(const std::string& name, std::int64_t batch, double seconds) {
  empty_cache(kCuda);
  reset_peak_memory_stats(kCuda);
  std::uint64_t driver_calls = 0;
  Training training(name, batch, kCuda);
  const std::vector<Tensor> inputs{training.codes, training.images};
  training.step(inputs);
  synchronize(kCuda);
  const double first_step = now() - start_of_process;
  const double eager = rate(
      seconds, [&] { training.step(inputs); }, driver_calls);
  const MemoryStats memory = memory_stats(kCuda);
  CapturedStep captured(kCuda, [&](const std::vector<Tensor>& x) { return training.step(x); });
  for (int i = 0; i < 2; ++i) captured(inputs);
  const std::vector<Tensor> own = captured.own_inputs(inputs);  // as PyTorch's graphs have theirs
  const double replayed = rate(
      seconds, [&] { captured(own); }, driver_calls);
  const double loss = captured(own)[0].item();
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::cout << "{\"eager\": " << eager * static_cast<double>(batch)
            << ", \"captured\": " << replayed * static_cast<double>(batch)
            << ", \"peak_MB\": " << mebibytes(memory.peak_in_use) << ", \"captured_peak_MB\": "
            << mebibytes(memory_stats(kCuda).in_use + captured.memory_stats().peak_in_use)
            << ", \"driver_allocations\": " << driver_calls << ", \"loss\": " << loss;
  static bool is_first = true;  // measurement of the process
  if (std::exchange(is_first, false)) std::cout << ", \"first_step_s\": " << first_step;
  std::cout << "}" << std::endl;
}

void measure_on_cpu(const std::string& name, std::int64_t batch, double seconds) {
  Training training(name, batch, Device{});
  training.step({training.codes, training.images});
  std::cout << "[";
  for (double begin = now(), end = begin + seconds, next; begin < end; begin = next) {
    training.step({training.codes, training.images});
    next = now();
    std::cout << next - begin << (next < end ? ", " : "");
  }
  std::cout << "]" << std::endl;
}

void profile(const std::string& name, std::int64_t batch, int steps, Device device) {
  Training training(name, batch, device);
  for (int i = 1; i <= steps; ++i)
    training.step({training.codes, training.images}, i == steps ? &std::cout : nullptr);
  synchronize(device);
  std::cout << std::endl;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string name, how;
    std::int64_t batch = 0;
    double seconds = 0;  // or steps
    const auto begins_with = [&](const std::string& word) {
      if (name != word) return false;
      in >> name;
      return true;
    };
    in >> name;
    const bool on_cpu = begins_with("cpu"), profiles = begins_with("profile");
    if (!(in >> batch >> how >> seconds) || (name != "vae" && name != "dcgan")) {
      std::cerr << "train_bench: cannot read: " << line << "\n";
      return 2;
    }
    if (on_cpu) {
      set_num_threads(std::stoi(how));
    } else {
      set_float32_precision(how == "high" ? Precision::high : Precision::highest);
    }
    if (profiles) {
      profile(name, batch, static_cast<int>(seconds), on_cpu ? Device{} : kCuda);
    } else {
      on_cpu ? measure_on_cpu(name, batch, seconds) : measure(name, batch, seconds);
    }
  }
  return 0;
}
