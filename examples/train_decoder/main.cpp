// train_decoder: trains a decoder from images without an encoder; --help says how.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <tapedeck/core/parallel.h>

#include "options.h"
#include "session.h"

namespace {

/// One line for stderr, whatever was thrown.
int fail(int status, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "train_decoder: %s\n", text.c_str());
  return status;
}

int run(int argc, char** argv) {
  try {
    const train_decoder::Options options = train_decoder::parse_options(argc, argv);
    tapedeck::set_num_threads(options.threads > 0 ? options.threads : tapedeck::num_threads());
    if (options.info) {
      train_decoder::print_info(options);
      return 0;
    }
    return train_decoder::train(options);
  } catch (const train_decoder::ParserExit& exit) {
    if (exit.code != 0) return fail(exit.code, exit.text);
    std::fputs(exit.text.c_str(), stdout);
    return 0;
  } catch (const std::bad_alloc&) {
    return fail(1, "out of memory; a smaller --batch, --latent or --model may help");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return fail(status != 0 ? status : 1, "stdout cannot be written");
}
