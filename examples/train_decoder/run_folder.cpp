#include "run_folder.h"

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <tapedeck/core/error.h>
#include <tapedeck/core/file.h>

namespace train_decoder {

using tapedeck::check;
using tapedeck::concat;
namespace fs = std::filesystem;

namespace {

constexpr const char* kHeader = "step,epoch,seconds,loss,psnr,lr,code_lr,images_per_second\n";

std::string to_line(const MetricsRow& row) {
  char line[256];
  std::snprintf(line, sizeof line, "%lld,%lld,%.3f,%.9g,%.6f,%.9g,%.9g,%.1f\n",
                static_cast<long long>(row.step), static_cast<long long>(row.epoch), row.seconds, row.loss,
                row.psnr, row.lr, row.code_lr, row.images_per_second);
  return line;
}

bool from_line(const std::string& line, MetricsRow& row) {
  long long step = 0, epoch = 0;
  const int fields =
      std::sscanf(line.c_str(), "%lld,%lld,%lf,%lf,%lf,%lf,%lf,%lf", &step, &epoch, &row.seconds, &row.loss,
                  &row.psnr, &row.lr, &row.code_lr, &row.images_per_second);
  row.step = step;
  row.epoch = epoch;
  return fields == 8;
}

/// A name for folders, from a path or a specification: letters, digits, '-' and '_' of its last part.
std::string plain_name(const std::string& text) {
  std::string name = fs::path(text.substr(0, text.find('?'))).stem().string();
  if (name.empty()) name = fs::path(text).parent_path().filename().string();
  std::string plain;
  for (const char c : name) {
    plain += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ? c : '_';
  }
  return plain.empty() ? "run" : plain.substr(0, 60);
}

}  // namespace

FolderLock::FolderLock(const std::string& path)
    : folder_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_ < 0 || ::flock(folder_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(folder_);
  throw tapedeck::Error(concat(path, ": another train_decoder is training this run"));
}

FolderLock::~FolderLock() {
  if (folder_ >= 0) ::close(folder_);
}

RunFolder RunFolder::locked(std::string path) {
  RunFolder folder(std::move(path));
  folder.lock_ = std::make_shared<const FolderLock>(folder.path_);
  return folder;
}

RunFolder RunFolder::create(const std::string& path, const std::string& data, const std::string& model) {
  std::error_code error;
  if (!path.empty()) {
    fs::create_directories(path, error);
    check(!error && fs::is_directory(path), "--out ", path,
          ": cannot make this folder: ", error ? error.message() : "there is a file of that name");
    RunFolder folder = locked(path);  // before it looks: of two that want the folder one is late
    check(!fs::exists(folder.config()), "--out ", path,
          ": there is a run in this folder already; continue it with --resume ", path, ", or choose another");
    check(fs::is_empty(path, error), "--out ", path, ": this folder is not empty");
    return folder;
  }
  fs::create_directories("runs", error);
  check(!error, "cannot make the folder runs: ", error.message());
  for (int number = 1;; ++number) {
    const std::string name = concat("runs/", plain_name(data), "-", plain_name(model), "-", number);
    const bool made = fs::create_directory(name, error);
    check(!error, "cannot make the folder ", name, ": ", error.message());
    if (made) return locked(name);
  }
}

Metrics::Metrics(std::string path, std::int64_t last_step) : path_(std::move(path)) {
  std::string text = kHeader;
  if (last_step > 0) {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);  // the header
    MetricsRow row;
    while (std::getline(file, line) && from_line(line, row) && row.step <= last_step) {
      rows_.push_back(row);
      text += line + "\n";
    }
  }
  tapedeck::write_atomically(path_, text);
}

void Metrics::append(const MetricsRow& row) {
  rows_.push_back(row);
  std::ofstream file(path_, std::ios::app);
  file << to_line(row) << std::flush;
  check(file.good(), path_, ": cannot be written");
}

void write_status(const std::string& path, const Status& status) {
  nlohmann::ordered_json json;
  json["finished"] = status.finished;
  json["step"] = status.step;
  json["seconds"] = status.seconds;
  json["mean_psnr_db"] = status.mean_psnr;  // null for NaN
  tapedeck::write_atomically(path, json.dump(2) + "\n");
}

Status read_status(const std::string& path) {
  Status status;
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return status;
  try {
    status.finished = json.at("finished").get<bool>();
    status.step = json.at("step").get<std::int64_t>();
    status.seconds = json.at("seconds").get<double>();
    if (json.at("mean_psnr_db").is_number()) status.mean_psnr = json["mean_psnr_db"].get<double>();
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return status;
}

}  // namespace train_decoder
