#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <locale>
#include <sstream>
#include <string_view>
#include <utility>

#include <tapedeck/core/file.h>
#include <tapedeck/ops/conv/shipped_choices.h>
#include <tapedeck/ops/conv/tuner.h>

namespace tapedeck {

namespace {

constexpr std::string_view kFirstLine = "tapedeck conv choices 1";
constexpr double kFaster = 0.97;  // of the estimated choice's time
constexpr std::size_t kQuestionFields = 7, kFields = kQuestionFields + 3, kNumbers = 16;

using Choices = std::map<std::string, ConvTuner::Choice>;

/// In whole nanoseconds, at least one, so that the file tells what was told before it was written.
double microseconds(double seconds) {
  return std::max(1.0, std::round(seconds * 1e9)) / 1e3;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

void check_word(const char* what, std::string_view word, std::initializer_list<std::string_view> legal) {
  if (std::find(legal.begin(), legal.end(), word) != legal.end()) return;
  std::string words;
  for (const std::string_view w : legal)
    words += concat(words.empty() ? "" : w == std::end(legal)[-1] ? " and " : ", ", w);
  throw Error(concat(what, " \"", word, "\" is unknown; legal are ", words));
}

/// Digits, in a locale of no country.
double parse_time(std::string_view field) {
  std::istringstream stream{std::string(field)};
  stream.imbue(std::locale::classic());
  double value = 0;
  const bool whole =
      static_cast<bool>(stream >> value) && stream.peek() == std::istringstream::traits_type::eof();
  check(whole && std::isfinite(value) && value > 0, "\"", field,
        "\" is no time; legal are microseconds above 0");
  return value;
}

void check_geometry(std::string_view field) {
  const std::vector<std::string_view> numbers = split(field, ' ');
  const auto is_number = [](std::string_view n) {
    return !n.empty() && n.size() < 20 && n.find_first_not_of("0123456789") == n.npos;
  };
  check(numbers.size() == kNumbers && std::all_of(numbers.begin(), numbers.end(), is_number), "geometry \"",
        field, "\" is not legal; legal are ", kNumbers, " whole numbers from 0");
}

std::pair<std::string, ConvTuner::Choice> parse_line(std::string_view line) {
  const std::vector<std::string_view> f = split(line, '\t');
  check(f.size() == kFields, "has ", f.size(), " fields between tabs; legal are ", kFields);
  check(!f[0].empty(), "names no GPU");
  check_word("pass", f[1], {kConvPassNames[0], kConvPassNames[1], kConvPassNames[2]});
  check_word("dtype", f[2], {"float64", "float32", "bfloat16", "float16"});
  check_word("precision", f[3], {"highest", "high"});
  for (const int layout : {4, 5}) check_word("layout", f[static_cast<std::size_t>(layout)], {"nchw", "nhwc"});
  check_geometry(f[6]);
  const std::size_t question = static_cast<std::size_t>(f[6].end() - line.begin());
  const std::size_t name = std::min(f[7].find(' '), f[7].size());
  const std::string_view algorithm = f[7].substr(0, name);
  check_word("algorithm", algorithm,
             {"reference", "matrix", "columns", "depthwise", "direct", "thin", "strip", "simt", "tensor",
              "wgmma", "windows", "boxes", "halves", "gathered", "rows", "channels_last"});
  const ConvTiling tiling = name < f[7].size() ? ConvTiling::parse(f[7].substr(name + 1)) : ConvTiling();
  return {std::string(line.substr(0, question)),
          {{parse_conv_algorithm(algorithm), tiling}, parse_time(f[8]), parse_time(f[9])}};
}

/// Of a text of choices that comes from `source`.
Choices parse_choices(std::string_view text, std::string_view source) {
  Choices choices;
  std::vector<std::string_view> lines = split(text, '\n');
  check(lines.front() == kFirstLine, source, ": line 1 is \"", lines.front().substr(0, 60), "\"; legal is \"",
        kFirstLine, "\"");
  check(lines.back().empty(), source, ": line ", lines.size(), " has no end; legal are whole lines");
  lines.pop_back();
  for (std::size_t i = 1; i < lines.size(); ++i)
    detail::naming(concat(source, ": line ", i + 1), [&] { choices.insert(parse_line(lines[i])); });
  return choices;
}

/// No choices where there is no file, unless it `must_exist`.
Choices read_choices(const std::string& path, bool must_exist) {
  Choices choices;
  std::error_code ignored;
  if (!must_exist && std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found)
    return choices;
  detail::naming("conv autotune", [&] {
    const MappedFile file(path);
    choices = parse_choices({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
  });
  return choices;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// f(), or `failed` when it throws Error; `spent` grows by the time that it takes.
template <class F, class R>
R tried(double& spent, R failed, F f) {
  const double begin = seconds_now();
  try {
    failed = f();
  } catch (const Error&) {  // an algorithm that fails is not taken
  }
  spent += seconds_now() - begin;
  return failed;
}

}  // namespace

std::string conv_tuner_question(const std::string& gpu, const char* pass, DType dtype, Precision precision,
                                Layout x, Layout y, const ConvTranspose2dGeometry& g) {
  const bool is_rounded = dtype == DType::float32 && precision != Precision::highest;
  std::string text = concat(gpu, '\t', pass, '\t', dtype, '\t', is_rounded ? "high" : "highest", '\t', x,
                            '\t', y, '\t', g.n, ' ', g.ci, ' ', g.co, ' ', g.groups);
  for (const ConvAxis* a : {&g.h, &g.w})
    text +=
        concat(' ', a->in, ' ', a->out, ' ', a->kernel, ' ', a->stride, ' ', a->padding, ' ', a->dilation);
  return text;
}

ConvTuner::ConvTuner(ConvAutotuneOptions options) : options_(std::move(options)) {
  check(options_.budget_seconds >= 0, "conv autotune: budget_seconds ", options_.budget_seconds,
        " is not legal; legal is 0 or more");
  check(!options_.pinned || !options_.file.empty(), "conv autotune: pinned choices need a file");
  if (!options_.file.empty()) choices_ = read_choices(options_.file, options_.pinned);
}

std::optional<ConvTuner::Choice> ConvTuner::known(const std::string& question) const {
  const std::lock_guard lock(mutex_);
  const auto found = choices_.find(question);
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

std::int64_t ConvTuner::measurements() const {
  const std::lock_guard lock(mutex_);
  return measurements_;
}

std::optional<ConvCandidate> ConvTuner::choose(const std::string& question, ConvTrial& trial) {
  const std::lock_guard lock(mutex_);
  if (const auto found = choices_.find(question); found != choices_.end()) return found->second.candidate;
  if (options_.pinned || !has_budget()) return {};
  const std::optional<Choice> choice = measure(trial);
  if (!choice) return {};
  choices_.insert({question, *choice});
  if (!options_.file.empty()) write();
  return choice->candidate;
}

std::optional<ConvTuner::Choice> ConvTuner::measure(ConvTrial& trial) {
  const std::vector<ConvCandidate> candidates = trial.candidates();
  if (candidates.size() < 2) return {};
  constexpr double kFailed = std::numeric_limits<double>::infinity();
  std::vector<std::pair<double, ConvCandidate>> times;
  double best = kFailed;
  const auto measured = [&](const ConvCandidate& c) {
    ++measurements_;
    return tried(spent_, kFailed, [&] { return trial.seconds(c, best); });
  };
  for (const ConvCandidate& c : candidates) {
    if (!has_budget()) return {};
    times.emplace_back(measured(c), c);
    best = std::min(best, times.back().first);
    if (times.front().first == kFailed) return {};
  }
  // Of many, some are fast by chance: the fastest are measured again, after the estimated choice.
  if (best <= kFaster * times.front().first) {
    for (auto& [time, c] : times)
      if (has_budget() && (time <= best / kFaster || c == candidates.front())) time = measured(c);
    if (times.front().first == kFailed) return {};
  }
  const auto [estimated, of_estimate] = times.front();
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [time, candidate] : times) {
    if (time > kFaster * estimated) break;
    const ConvCandidate& a = candidate;
    if (tried(spent_, false, [&] { return trial.matches(a); }))
      return Choice{a, microseconds(time), microseconds(estimated)};
  }
  return Choice{of_estimate, microseconds(estimated), microseconds(estimated)};
}

/// With the choices that other processes wrote meanwhile: writers wait for each other.
void ConvTuner::write() {
  AtomicFile file(options_.file);
  choices_.merge(read_choices(options_.file, false));
  std::string text = concat(kFirstLine, '\n');
  for (const auto& [question, c] : choices_)
    text += concat(question, '\t', to_string(c.candidate), '\t', c.microseconds, '\t', c.estimated, '\n');
  file.write(text);
  file.commit();
}

const std::map<std::string, ConvTuner::Choice>& shipped_choices() {
  static const auto* const known = new Choices(parse_choices(kShippedChoices, "shipped choices"));
  return *known;
}

std::optional<ConvTuner::Choice> shipped_choice(const std::string& question) {
  const auto found = shipped_choices().find(question);
  return found == shipped_choices().end() ? std::nullopt : std::optional(found->second);
}

bool has_shipped_choices(const std::string& gpu) {
  const auto next = shipped_choices().lower_bound(gpu + '\t');
  return next != shipped_choices().end() && next->first.starts_with(gpu + '\t');
}

namespace {

struct Tuning {
  std::mutex mutex;
  std::shared_ptr<ConvTuner> tuner;
  std::atomic<std::int64_t> number = -1;  // -1: what the environment says is not known yet
  std::int64_t tuners = 0;
};

Tuning& tuning() {
  static auto* const made = new Tuning;  // outlives every thread
  return *made;
}

/// With the mutex.
void begin(Tuning& t, std::optional<ConvAutotuneOptions> options) {
  std::shared_ptr<ConvTuner> tuner;
  if (options) tuner = std::make_shared<ConvTuner>(*std::move(options));
  t.number = tuner ? ++t.tuners : 0;
  t.tuner = std::move(tuner);
}

std::optional<ConvAutotuneOptions> from_environment() {
  for (const bool pinned : {true, false}) {
    const char* const file = std::getenv(pinned ? "TAPEDECK_CONV_AUTOTUNE_PINNED" : "TAPEDECK_CONV_AUTOTUNE");
    if (file != nullptr && *file != '\0') return ConvAutotuneOptions{.file = file, .pinned = pinned};
  }
  return {};
}

}  // namespace

void set_conv_autotune(std::optional<ConvAutotuneOptions> options) {
  Tuning& t = tuning();
  const std::lock_guard lock(t.mutex);
  begin(t, std::move(options));
}

std::shared_ptr<ConvTuner> conv_tuner() {
  if (conv_tuner_number() == 0) return nullptr;
  Tuning& t = tuning();
  const std::lock_guard lock(t.mutex);
  return t.tuner;
}

std::int64_t conv_tuner_number() {
  Tuning& t = tuning();
  if (const std::int64_t number = t.number; number >= 0) return number;
  const std::lock_guard lock(t.mutex);
  if (t.number < 0) begin(t, from_environment());
  return t.number;
}

}  // namespace tapedeck
