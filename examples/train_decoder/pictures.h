// The pictures of a run: what there is to look at.
#pragma once

#include <string>

#include "run_folder.h"
#include "trainer.h"

namespace train_decoder {

/// Writes reconstructions.png (pairs: an original, and what its code decodes to; images from all over the
/// data), interpolations.png (each row: from one image's code to another's) and training.png (loss and
/// PSNR over the steps).
void write_pictures(Trainer& trainer, const Metrics& metrics, const RunFolder& folder);

}  // namespace train_decoder
