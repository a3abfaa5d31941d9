#include <tapedeck/nn/model_description.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include <tapedeck/core/memory.h>
#include <tapedeck/nn/activation.h>
#include <tapedeck/nn/conv.h>
#include <tapedeck/nn/dropout.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/norm.h>
#include <tapedeck/nn/pool.h>
#include <tapedeck/nn/upsample.h>

namespace tapedeck::nn {

namespace {

constexpr std::size_t kMaxText = 1 << 20;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 24;

/// `text` for a message: short, and without characters that a terminal obeys.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 40 ? "...\"" : "\"");
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(separators, begin)) != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

/// The key=value pairs of a line, read as what a layer needs.
class Values {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  explicit Values(const Pairs& pairs) : pairs_(pairs) {}

  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::int64_t count(std::string_view key) const { return one(key, need(key), 1); }
  std::int64_t count(std::string_view key, std::int64_t fallback, std::int64_t low = 1) const {
    const std::string* text = find(key);
    return text ? one(key, *text, low) : fallback;
  }

  std::vector<std::int64_t> counts(std::string_view key, std::int64_t low = 1) const {
    const std::string& text = need(key);
    std::vector<std::int64_t> numbers;
    for (std::size_t begin = 0, end = 0; end != text.npos; begin = end + 1) {
      end = text.find('x', begin);
      numbers.push_back(one(key, text.substr(begin, end - begin), low));
    }
    check(numbers.size() <= Shape::kMaxRank - 1, key, " has ", numbers.size(), " sizes; legal are at most ",
          Shape::kMaxRank - 1);
    return numbers;
  }

  Size2 size(std::string_view key, std::int64_t low = 1) const {
    const std::vector<std::int64_t> numbers = counts(key, low);
    check(numbers.size() <= 2, key, "=", in_quotes(need(key)), " has ", numbers.size(),
          " sizes; legal are N and HxW");
    return {numbers.front(), numbers.back()};
  }
  Size2 size(std::string_view key, Size2 fallback, std::int64_t low) const {
    return has(key) ? size(key, low) : fallback;
  }

  double real(std::string_view key, double fallback) const {
    const std::string* text = find(key);
    if (!text) return fallback;
    double value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    check(error == std::errc() && end == text->data() + text->size() && std::isfinite(value), key, "=",
          in_quotes(*text), " is not a finite number");
    return value;
  }

  bool flag(std::string_view key, bool fallback) const {
    return choice(key, fallback ? "true" : "false", {"true", "false"}) == "true";
  }

  std::string choice(std::string_view key, std::string_view fallback,
                     std::initializer_list<std::string_view> legal) const {
    const std::string* text = find(key);
    if (!text) return std::string(fallback);
    std::string list;
    for (const std::string_view word : legal) {
      if (*text == word) return *text;
      list += concat(list.empty() ? "" : ", ", word);
    }
    throw Error(concat(key, "=", in_quotes(*text), " is not legal; legal are ", list));
  }

 private:
  const std::string* find(std::string_view key) const {
    const auto found =
        std::find_if(pairs_.begin(), pairs_.end(), [&](const auto& p) { return p.first == key; });
    return found == pairs_.end() ? nullptr : &found->second;
  }
  const std::string& need(std::string_view key) const {
    const std::string* text = find(key);
    check(text != nullptr, key, " is missing");
    return *text;
  }
  static std::int64_t one(std::string_view key, std::string_view text, std::int64_t low) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc() && end == text.data() + text.size() && value >= low && value <= kMaxCount, key,
          "=", in_quotes(text), " is not legal; legal are whole numbers from ", low, " to ", kMaxCount);
    return value;
  }

  const Pairs& pairs_;
};

using ModulePointer = std::shared_ptr<Module>;

template <class M>
ModulePointer layer(const M& module) {
  return std::make_shared<M>(module);
}

/// What there is: a layer's name, its keys, and how it is made.
struct LayerKind {
  std::string_view name, keys;
  ModulePointer (*make)(const Values&);
};

// In alphabetical order.
constexpr LayerKind kLayers[] = {
    {"adaptive_avg_pool2d", "size",
     [](const Values& v) { return layer(AdaptiveAvgPool2d({.output_size = v.size("size")})); }},
    {"avg_pool2d", "kernel stride padding",
     [](const Values& v) {
       return layer(AvgPool2d({.kernel_size = v.size("kernel"),
                               .stride = v.size("stride", v.size("kernel"), 1),
                               .padding = v.size("padding", 0, 0)}));
     }},
    {"batch_norm1d", "features eps momentum",
     [](const Values& v) {
       return layer(BatchNorm1d({.num_features = v.count("features"),
                                 .eps = v.real("eps", 1e-5),
                                 .momentum = v.real("momentum", 0.1)}));
     }},
    {"batch_norm2d", "features eps momentum",
     [](const Values& v) {
       return layer(BatchNorm2d({.num_features = v.count("features"),
                                 .eps = v.real("eps", 1e-5),
                                 .momentum = v.real("momentum", 0.1)}));
     }},
    {"conv2d", "in out kernel stride padding dilation groups bias",
     [](const Values& v) {
       return layer(Conv2d({.in_channels = v.count("in"),
                            .out_channels = v.count("out"),
                            .kernel_size = v.size("kernel"),
                            .stride = v.size("stride", 1, 1),
                            .padding = v.size("padding", 0, 0),
                            .dilation = v.size("dilation", 1, 1),
                            .groups = v.count("groups", 1),
                            .bias = v.flag("bias", true)}));
     }},
    {"conv_transpose2d", "in out kernel stride padding output_padding dilation groups bias",
     [](const Values& v) {
       return layer(ConvTranspose2d({.in_channels = v.count("in"),
                                     .out_channels = v.count("out"),
                                     .kernel_size = v.size("kernel"),
                                     .stride = v.size("stride", 1, 1),
                                     .padding = v.size("padding", 0, 0),
                                     .output_padding = v.size("output_padding", 0, 0),
                                     .dilation = v.size("dilation", 1, 1),
                                     .groups = v.count("groups", 1),
                                     .bias = v.flag("bias", true)}));
     }},
    {"dropout", "p", [](const Values& v) { return layer(Dropout({.p = v.real("p", 0.5)})); }},
    {"elu", "alpha", [](const Values& v) { return layer(ELU({.alpha = v.real("alpha", 1)})); }},
    {"flatten", "", [](const Values&) { return layer(Flatten()); }},
    {"gelu", "approximate",
     [](const Values& v) {
       const bool approximate = v.choice("approximate", "none", {"none", "tanh"}) == "tanh";
       return layer(GELU({.approximate = approximate ? Gelu::tanh : Gelu::exact}));
     }},
    {"group_norm", "groups channels eps",
     [](const Values& v) {
       return layer(GroupNorm({.num_groups = v.count("groups"),
                               .num_channels = v.count("channels"),
                               .eps = v.real("eps", 1e-5)}));
     }},
    {"hardtanh", "min max",
     [](const Values& v) {
       return layer(Hardtanh({.min_val = v.real("min", -1), .max_val = v.real("max", 1)}));
     }},
    {"identity", "", [](const Values&) { return layer(Identity()); }},
    {"layer_norm", "shape eps",
     [](const Values& v) {
       return layer(LayerNorm({.normalized_shape = Shape(v.counts("shape")), .eps = v.real("eps", 1e-5)}));
     }},
    {"leaky_relu", "slope",
     [](const Values& v) { return layer(LeakyReLU({.negative_slope = v.real("slope", 0.01)})); }},
    {"linear", "in out bias",
     [](const Values& v) {
       return layer(Linear(
           {.in_features = v.count("in"), .out_features = v.count("out"), .bias = v.flag("bias", true)}));
     }},
    {"log_softmax", "dim",
     [](const Values& v) { return layer(LogSoftmax({.dim = static_cast<int>(v.count("dim", 1, 0))})); }},
    {"max_pool2d", "kernel stride padding dilation",
     [](const Values& v) {
       return layer(MaxPool2d({.kernel_size = v.size("kernel"),
                               .stride = v.size("stride", v.size("kernel"), 1),
                               .padding = v.size("padding", 0, 0),
                               .dilation = v.size("dilation", 1, 1)}));
     }},
    {"mish", "", [](const Values&) { return layer(Mish()); }},
    {"pixel_shuffle", "factor",
     [](const Values& v) { return layer(PixelShuffle({.upscale_factor = v.count("factor")})); }},
    {"pixel_unshuffle", "factor",
     [](const Values& v) { return layer(PixelUnshuffle({.downscale_factor = v.count("factor")})); }},
    {"relu", "", [](const Values&) { return layer(ReLU()); }},
    {"sigmoid", "", [](const Values&) { return layer(Sigmoid()); }},
    {"silu", "", [](const Values&) { return layer(SiLU()); }},
    {"softmax", "dim",
     [](const Values& v) { return layer(Softmax({.dim = static_cast<int>(v.count("dim", 1, 0))})); }},
    {"softplus", "beta threshold",
     [](const Values& v) {
       return layer(Softplus({.beta = v.real("beta", 1), .threshold = v.real("threshold", 20)}));
     }},
    {"tanh", "", [](const Values&) { return layer(Tanh()); }},
    {"unflatten", "shape", [](const Values& v) { return layer(Unflatten(Shape(v.counts("shape")))); }},
    {"upsample", "scale mode",
     [](const Values& v) {
       const bool bilinear = v.choice("mode", "nearest", {"nearest", "bilinear"}) == "bilinear";
       return layer(Upsample({.scale_factor = v.size("scale"),
                              .mode = bilinear ? Upsample::Mode::bilinear : Upsample::Mode::nearest}));
     }},
};

const LayerKind* find_kind(std::string_view name) {
  const auto found = std::find_if(std::begin(kLayers), std::end(kLayers),
                                  [&](const LayerKind& kind) { return kind.name == name; });
  return found == std::end(kLayers) ? nullptr : found;
}

const LayerKind& need_kind(std::string_view name) {
  const LayerKind* kind = find_kind(name);
  if (kind) return *kind;
  std::string list;
  for (const std::string& known : layer_names()) list += (list.empty() ? "" : ", ") + known;
  throw Error(concat("layer ", in_quotes(name), " is unknown; legal are ", list));
}

/// The number of a layer's parameters, from its sizes alone, so that an absurd layer is refused before it
/// takes memory; in floating point, which does not overflow.
double parameters_of(std::string_view name, const Values& v) {
  if (!v.has("in") && !v.has("features") && !v.has("channels") && name != "layer_norm") return 0;
  double results = 1;  // each has a weight of its own or a filter, and a bias
  for (const std::string_view key : {"out", "features", "channels"}) {
    results *= static_cast<double>(v.count(key, 1));
  }
  if (v.has("shape")) {
    for (const std::int64_t size : v.counts("shape")) results *= static_cast<double>(size);
  }
  double filter = 1;
  if (v.has("in")) filter = static_cast<double>(v.count("in")) / static_cast<double>(v.count("groups", 1));
  if (v.has("kernel")) {
    const Size2 kernel = v.size("kernel");
    filter *= static_cast<double>(kernel.h) * static_cast<double>(kernel.w);
  }
  return results * (filter + (v.flag("bias", true) ? 1 : 0));
}

/// Hands out another allocator's memory, up to a limit.
class LimitedAllocator final : public Allocator {
 public:
  LimitedAllocator(Allocator& source, std::size_t limit) : source_(source), limit_(limit) {}
  void* allocate(std::size_t bytes, Stream stream) override {
    check(bytes <= limit_ - in_use_, "the activations would take ", format_bytes(bytes), " beside the ",
          format_bytes(in_use_), " in use; legal are at most ", format_bytes(limit_));
    void* pointer = source_.allocate(bytes, stream);
    in_use_ += bytes;
    return pointer;
  }
  void record_stream(void* pointer, Stream stream) override { source_.record_stream(pointer, stream); }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override {
    in_use_ -= bytes;
    source_.deallocate(pointer, bytes, stream);
  }

 private:
  Allocator& source_;
  std::size_t limit_, in_use_ = 0;
};

/// Runs `f`; an Error that leaves it gets `place` in front.
template <class F>
auto at(const std::string& source, int line, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Error(concat(source, ":", line, ": ", error.what()));
  }
}

}  // namespace

ModelDescription ModelDescription::parse(std::string_view text, std::string source) {
  check(text.size() <= kMaxText, source, ": ", text.size(), " bytes are too many for a model description; ",
        "legal are at most ", kMaxText);
  ModelDescription description;
  description.source_ = std::move(source);
  description.text_ = text;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    line = line.substr(0, line.find('#'));
    const std::vector<std::string_view> words = split(line, " \t\r");
    if (words.empty()) continue;
    Layer layer;
    layer.line = number + 1;
    layer.name = words[0];
    for (const std::string_view word : words) layer.text += concat(layer.text.empty() ? "" : " ", word);
    at(description.source_, layer.line, [&] {
      const std::string_view keys = need_kind(layer.name).keys;
      const std::vector<std::string_view> legal = split(keys, " ");
      for (std::size_t i = 1; i < words.size(); ++i) {
        const std::size_t equals = words[i].find('=');
        check(equals != words[i].npos, layer.name, ": ", in_quotes(words[i]), " is not key=value");
        const std::string key(words[i].substr(0, equals));
        check(std::find(legal.begin(), legal.end(), key) != legal.end(), layer.name, ": ", in_quotes(key),
              " is unknown; ", keys.empty() ? "it takes no keys" : concat("legal are ", keys));
        check(std::none_of(layer.values.begin(), layer.values.end(),
                           [&](const auto& pair) { return pair.first == key; }),
              layer.name, ": ", key, " is given twice");
        layer.values.emplace_back(key, words[i].substr(equals + 1));
      }
    });
    description.layers_.push_back(std::move(layer));
  }
  check(!description.layers_.empty(), description.source_, ": there is no layer in this model description");
  return description;
}

ModelDescription ModelDescription::load(const std::string& path) {
  std::error_code error;
  check(std::filesystem::is_regular_file(path, error), path, ": there is no such file");
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxText + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  check(!file.bad() && (file.eof() || file.good()), path, ": cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  return parse(text, path);
}

Sequential ModelDescription::build(std::int64_t max_parameters) const {
  Sequential model;
  std::int64_t count = 0;
  for (const Layer& layer : layers_) {
    at(source_, layer.line, [&] {
      const Values values(layer.values);
      try {
        const double bound = static_cast<double>(count) + parameters_of(layer.name, values);
        check(bound <= static_cast<double>(max_parameters), "the model would have ", bound,
              " parameters up to here; legal are at most ", max_parameters);
        const ModulePointer module = need_kind(layer.name).make(values);
        count += module->parameter_count();
        model.push_back(module);
      } catch (const Error& problem) {
        throw Error(concat(layer.name, ": ", problem.what()));
      }
    });
  }
  return model;
}

std::vector<ModelDescription::Row> ModelDescription::trace(const Sequential& model, const Shape& input,
                                                           std::size_t max_bytes) const {
  check(model.size() == layers_.size(), "model description: the model has ", model.size(), " layers, not ",
        layers_.size());
  const NoTape no_tape;
  LimitedAllocator limited(Context::current(Device{}).allocator(), max_bytes);
  const Context context(Device{}, nullptr, limited);
  const ContextScope scope(context);
  std::vector<Row> rows;
  Variable x = Tensor::zeros(input);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Module& module = model[i];
    const bool training = module.is_training();
    module.eval();
    at(source_, layers_[i].line, [&] { x = module.forward(x); });
    module.train(training);
    rows.push_back({layers_[i].line, layers_[i].text, x.shape(), module.parameter_count()});
  }
  return rows;
}

std::vector<std::string> layer_names() {
  std::vector<std::string> names;
  for (const LayerKind& kind : kLayers) names.emplace_back(kind.name);
  return names;
}

std::string layer_keys(std::string_view name) {
  return std::string(need_kind(name).keys);
}

}  // namespace tapedeck::nn
