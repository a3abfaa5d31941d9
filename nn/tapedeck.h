// Everything that a user of Tapedeck includes.
#pragma once

#include <tapedeck/autograd/gradcheck.h>
#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/core/random.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/nn/module.h>
#include <tapedeck/nn/optim/adam.h>
#include <tapedeck/nn/optim/average.h>
#include <tapedeck/nn/optim/rmsprop.h>
#include <tapedeck/nn/optim/scheduler.h>
#include <tapedeck/nn/optim/sgd.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>
