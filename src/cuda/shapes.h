// The instances of cuda.flash2's backward and of cuda.flash1 in numbers, without their kernels:
// what builds without CUDA choose from for an assumed GPU. Builds with CUDA take the numbers from
// the kernels themselves (mma/backward/table.h, baselines/flash1/table.cuh), and shapes_test.cpp
// compares them with these.
#pragma once

#include <span>

#include "cuda/baselines/flash1/config.h"
#include "cuda/mma/backward/arguments.h"

namespace tessera::cuda::shapes {

using BackwardInstance = mma::backward::Instance;
using enum Variant;

// head_dim, variant, queries and keys of a tile, threads, shared memory, in turns, thread blocks
// together, bytes for a bias.
inline constexpr BackwardInstance kKeys64[] = {{nullptr, 64, plain, 64, 128, 128, 83200, true, 2, 0},
                                               {nullptr, 64, featured, 64, 128, 128, 83200, true, 2, 16384},
                                               {nullptr, 64, dropout, 64, 128, 128, 83200, true, 2, 16384}};
inline constexpr BackwardInstance kKeys128[] = {
    {nullptr, 128, plain, 64, 128, 256, 165120, false, 1, 0},
    {nullptr, 128, plain, 64, 128, 256, 165120, true, 1, 0},
    {nullptr, 128, featured, 64, 128, 256, 165120, true, 1, 16384},
    {nullptr, 128, dropout, 64, 128, 256, 165120, true, 1, 16384},
    {nullptr, 128, plain, 64, 64, 128, 82688, true, 1, 0},
    {nullptr, 128, dropout, 64, 64, 128, 82688, true, 1, 8192}};
inline constexpr BackwardInstance kKeys256[] = {{nullptr, 256, plain, 64, 64, 256, 214272, false, 1, 0},
                                                {nullptr, 256, plain, 64, 64, 256, 214272, true, 1, 0},
                                                {nullptr, 256, featured, 64, 64, 256, 214272, true, 1, 8192},
                                                {nullptr, 256, dropout, 64, 64, 256, 214272, true, 1, 8192},
                                                {nullptr, 256, plain, 64, 64, 256, 148224, true, 1, 0},
                                                {nullptr, 256, dropout, 64, 64, 256, 148224, true, 1, 8192},
                                                {nullptr, 256, plain, 32, 32, 128, 70144, true, 1, 0},
                                                {nullptr, 256, dropout, 32, 32, 128, 70144, true, 1, 2048}};
inline constexpr BackwardInstance kQueries64[] = {{nullptr, 64, dropout, 128, 64, 128, 65680}};
inline constexpr BackwardInstance kQueries128[] = {{nullptr, 128, dropout, 128, 32, 128, 98448}};
inline constexpr BackwardInstance kQueries256[] = {{nullptr, 256, dropout, 64, 32, 128, 98448}};
inline constexpr BackwardInstance kBias[] = {{nullptr, 256, featured, 64, 64, 128, 0},
                                             {nullptr, 256, dropout, 64, 64, 128, 0}};

inline constexpr BackwardInstance kTuringKeys64[] = {{nullptr, 64, plain, 32, 128, 128, 49664, true},
                                                     {nullptr, 64, dropout, 32, 128, 128, 49664, true}};
inline constexpr BackwardInstance kTuringKeys128[] = {{nullptr, 128, plain, 32, 64, 128, 57856, true},
                                                      {nullptr, 128, dropout, 32, 64, 128, 57856, true}};
inline constexpr BackwardInstance kTuringKeys256[] = {{nullptr, 256, plain, 16, 32, 128, 51584, true},
                                                      {nullptr, 256, dropout, 16, 32, 128, 51584, true}};
inline constexpr BackwardInstance kTuringQueries64[] = {{nullptr, 64, plain, 128, 64, 128, 49296},
                                                        {nullptr, 64, dropout, 128, 64, 128, 49296}};
inline constexpr BackwardInstance kTuringQueries128[] = {{nullptr, 128, plain, 64, 32, 128, 49296},
                                                         {nullptr, 128, dropout, 64, 32, 128, 49296}};
inline constexpr BackwardInstance kTuringQueries256[] = {{nullptr, 256, dropout, 32, 16, 64, 49296}};
inline constexpr BackwardInstance kTuringBias[] = {{nullptr, 256, dropout, 64, 64, 128, 0}};

// From compute capability 8.0 on, for both types.
inline mma::backward::Family backward_family() {
  return {{{kKeys64, kQueries64}, {kKeys128, kQueries128}, {kKeys256, kQueries256}}, kBias};
}
inline mma::backward::Family backward_family_turing() {
  return {{{kTuringKeys64, kTuringQueries64},
           {kTuringKeys128, kTuringQueries128},
           {kTuringKeys256, kTuringQueries256}},
          kTuringBias};
}

// head_dim, queries of a tile, keys of a step, threads, splits, bytes of shared memory, and per
// key. Both variants alike.
constexpr flash1::Instances alike(flash1::Instance forward, flash1::Instance backward,
                                  flash1::Instance bias) {
  return {{forward, forward}, {backward, backward}, bias};
}

constexpr flash1::Instances flash1_instances(flash1::Engine engine, int head_dim) {
  using flash1::Engine;
  using flash1::Instance;
  const int at = head_dim == 64 ? 0 : head_dim == 128 ? 1 : 2;
  if (engine == Engine::fp32) {
    constexpr Instance kForward[] = {{nullptr, 64, 64, 32, 128, 1, 27648, 544},
                                     {nullptr, 128, 64, 32, 128, 1, 44032, 1056},
                                     {nullptr, 256, 64, 32, 256, 2, 86016, 2080}};
    constexpr Instance kBackward[] = {{nullptr, 64, 32, 32, 128, 2, 44120, 0},
                                      {nullptr, 128, 32, 32, 128, 2, 76888, 0},
                                      {nullptr, 256, 32, 32, 256, 4, 142424, 0}};
    return alike(kForward[at], kBackward[at], kBackward[at]);
  }
  if (engine == Engine::sm75_fp16) {
    constexpr Instance kForward[] = {{nullptr, 64, 128, 64, 256, 1, 33792, 256},
                                     {nullptr, 128, 64, 32, 128, 1, 25600, 512},
                                     {nullptr, 256, 32, 32, 128, 2, 25600, 1024}};
    constexpr Instance kBackward[] = {
        {nullptr, 64, 64, 64, 256, 2, 49240, 0}, {nullptr, 128, 32, 32, 128, 2, 41048, 0}, {}};
    return alike(kForward[at], kBackward[at], kBackward[at]);
  }
  constexpr Instance kForward[] = {{nullptr, 64, 128, 64, 256, 1, 50176, 256},
                                   {nullptr, 128, 128, 32, 256, 1, 82944, 512},
                                   {nullptr, 256, 64, 32, 256, 2, 82944, 1024}};
  constexpr Instance kBackward[] = {{nullptr, 64, 64, 64, 256, 2, 65624, 0},
                                    {nullptr, 128, 64, 64, 256, 2, 82008, 0},
                                    {nullptr, 256, 32, 32, 256, 4, 73816, 0}};
  constexpr Instance kBias64{nullptr, 64, 64, 64, 256, 2, 49240, 0};
  return alike(kForward[at], kBackward[at], at == 0 ? kBias64 : kBackward[at]);
}

}  // namespace tessera::cuda::shapes
