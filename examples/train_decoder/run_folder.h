// The folder of a run: where its files are, and the table of its metrics.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace train_decoder {

/// Keeps a folder from other processes that ask for it in this way, until it or the process ends.
class FolderLock {
 public:
  /// Throws tapedeck::Error when another process has it. A file system without locks grants all.
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_;
};

class RunFolder {
 public:
  /// Makes and locks a new folder: `path`, which must not hold anything yet, or when it is empty the first
  /// runs/<data>-<model>-<number> that does not exist. Throws tapedeck::Error when that is impossible.
  static RunFolder create(const std::string& path, const std::string& data, const std::string& model);
  /// The folder of an earlier run, to read.
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  /// The same, to write. Throws tapedeck::Error when another process does.
  static RunFolder locked(std::string path);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  std::string config() const { return file("config.json"); }
  std::string model() const { return file("model.txt"); }
  std::string metrics() const { return file("metrics.csv"); }
  std::string status() const { return file("status.json"); }
  std::string checkpoint() const { return file("checkpoint.safetensors"); }

 private:
  std::string path_;
  std::shared_ptr<const FolderLock> lock_;
};

/// A line of metrics.csv: means over the steps since the line before.
struct MetricsRow {
  std::int64_t step = 0, epoch = 0;
  double seconds = 0;  // of training, over all its parts
  double loss = 0, psnr = 0;
  double lr = 0, code_lr = 0;
  double images_per_second = 0;
};

/// metrics.csv, in memory and in the file. A line is in the file once append() has returned.
class Metrics {
 public:
  /// Keeps the lines up to `last_step` of a file that is there; 0 starts anew. Throws tapedeck::Error when
  /// the file cannot be written.
  Metrics(std::string path, std::int64_t last_step);

  void append(const MetricsRow& row);
  const std::vector<MetricsRow>& rows() const { return rows_; }

 private:
  std::string path_;
  std::vector<MetricsRow> rows_;
};

/// status.json: where the run stands.
struct Status {
  bool finished = false;
  std::int64_t step = 0;
  double seconds = 0;
  /// Over all training images: the mean of the images' PSNRs in dB; NaN before the end.
  double mean_psnr = std::numeric_limits<double>::quiet_NaN();
};

void write_status(const std::string& path, const Status& status);
/// A status of step 0 when there is no file or it is not one of write_status().
Status read_status(const std::string& path);

}  // namespace train_decoder
