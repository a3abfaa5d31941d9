// Everything that a user of Tapedeck includes.
#pragma once

#include <tapedeck/autograd/gradcheck.h>
#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/core/random.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/nn/data/dataset.h>
#include <tapedeck/nn/data/file.h>
#include <tapedeck/nn/data/idx.h>
#include <tapedeck/nn/data/image.h>
#include <tapedeck/nn/data/loader.h>
#include <tapedeck/nn/data/npy.h>
#include <tapedeck/nn/data/safetensors.h>
#include <tapedeck/nn/module.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>
