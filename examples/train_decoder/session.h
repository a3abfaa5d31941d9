// One call of the program: from the options to the files of the run.
#pragma once

#include "options.h"

namespace train_decoder {

/// Prints what would be trained: data, layers, length.
void print_info(const Options& options);

/// Trains, or goes on training, until the run is over or a signal comes, and leaves a checkpoint. Returns the
/// exit status. Throws tapedeck::Error for what is wrong with the options, the data or the files.
int train(const Options& options);

}  // namespace train_decoder
