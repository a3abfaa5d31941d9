// The policy of the autotuner (autotune.h), free of CUDA: what is tried, what is taken of it, and the file.
//
// A file is text: a line "tapedeck conv choices 1", and a line of fields between tabs for each choice:
//   the GPU's name; forward, input_gradient or weight_gradient; the dtype; highest or high, the precision of
//   float32; the layouts of x and y; n, ci, co and groups of the geometry, and in, out, kernel, stride,
//   padding and dilation of h and of w; the algorithm, and where one of its tilings was measured (tiling.h),
//   a space and that; its microseconds; those of the estimated choice.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tapedeck/core/precision.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/autotune.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck {

inline constexpr std::array kConvPassNames{"forward", "input_gradient", "weight_gradient"};

/// What a choice is for: the first fields of its line. `pass`: one of kConvPassNames.
std::string conv_tuner_question(const std::string& gpu, const char* pass, DType dtype, Precision precision,
                                Layout x, Layout y, const ConvTranspose2dGeometry& g);

/// A call that algorithms are tried on.
struct ConvTrial {
  virtual ~ConvTrial() = default;
  /// The estimated choice first, and what else can compute the call.
  virtual std::vector<ConvCandidate> candidates() = 0;
  /// What a call takes; about that, when it is far more than `best`. Throws Error when it fails.
  virtual double seconds(const ConvCandidate& candidate, double best) = 0;
  /// Whether the results are those of the estimated choice, but for rounding. Throws Error when it fails.
  virtual bool matches(const ConvCandidate& candidate) = 0;
};

/// Choices, and how new ones come about. Any thread may call it; one trial is made at a time.
class ConvTuner {
 public:
  struct Choice {
    ConvCandidate candidate;
    double microseconds, estimated;  // of the algorithm, and of the estimated choice
  };

  /// Reads the file. Throws Error as set_conv_autotune() does.
  explicit ConvTuner(ConvAutotuneOptions options);

  std::optional<Choice> known(const std::string& question) const;
  /// What computes a question's call, after a trial if need be. Nothing: as estimated. Throws Error when the
  /// file cannot be replaced; the choice is known then.
  std::optional<ConvCandidate> choose(const std::string& question, ConvTrial& trial);

  /// How often ConvTrial::seconds() was called.
  std::int64_t measurements() const;

 private:
  bool has_budget() const { return spent_ < options_.budget_seconds; }
  /// Nothing when the budget ends before, or the estimated choice fails.
  std::optional<Choice> measure(ConvTrial& trial);
  void write();

  ConvAutotuneOptions options_;
  mutable std::mutex mutex_;
  std::map<std::string, Choice> choices_;
  double spent_ = 0;  // seconds
  std::int64_t measurements_ = 0;
};

/// The choice of the table that the library has (shipped_choices.h).
std::optional<ConvTuner::Choice> shipped_choice(const std::string& question);
/// Whether that has any for a GPU of this name.
bool has_shipped_choices(const std::string& gpu);
/// Its questions and choices, with what GPU each is of.
const std::map<std::string, ConvTuner::Choice>& shipped_choices();

/// That of set_conv_autotune(); null: none.
std::shared_ptr<ConvTuner> conv_tuner();
/// Its number, which no other has; 0: none. Throws Error when what the environment names is not legal.
std::int64_t conv_tuner_number();

}  // namespace tapedeck
