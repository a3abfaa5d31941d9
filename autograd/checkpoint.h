// Checkpointing: recompute instead of save.
#pragma once

#include <functional>

#include <tapedeck/core/op.h>

namespace tapedeck {

/// f(inputs), of which the tape keeps only the inputs: the walk runs f again and walks that. Costs a second
/// forward and saves all that f's ops would have kept. Gradients of any order are those of f itself,
/// for `inputs` as for parameters and other variables that f reaches by captured handles.
///
/// f must compute the same each time. What it draws from default_generator() is drawn again; numbers
/// from another generator are not, so give f a copy of that. Other effects happen twice: the running
/// statistics of batch normalisation move twice.
/// Throws Error when an input is undefined.
Variable checkpoint(const std::function<Variable(const Variables&)>& f, const Variables& inputs);

}  // namespace tapedeck
