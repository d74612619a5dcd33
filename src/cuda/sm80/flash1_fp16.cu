// cuda.flash1 in fp16 for compute capability 8.0 and newer.
#include "cuda/flash1/bias_gradient.cuh"
#include "cuda/flash1/forward.cuh"

namespace tessera::cuda::flash1 {
namespace {

constexpr Engine kEngine = Engine::sm80_fp16;

template <int D, Variant V>
constexpr Instance forward_of() {
  return forward_instance<ForwardConfig{.engine = kEngine,
                                        .variant = V,
                                        .head_dim = D,
                                        .warps = 8,
                                        .splits = D == 256 ? 2 : 1,
                                        .step_k = D == 64 ? 64 : 32,
                                        .stages = 2}>();
}

template <int D, Variant V, int Block>
constexpr Instance backward_of() {
  return backward_instance<BackwardConfig{.engine = kEngine,
                                          .variant = V,
                                          .head_dim = D,
                                          .block = Block,
                                          .splits = D == 256 ? 4 : 2,
                                          .stages = D == 64 ? 2 : 1}>();
}

template <int D>
constexpr Instance bias_of() {
  return bias_instance<BackwardConfig{.engine = kEngine,
                                      .variant = Variant::featured,
                                      .head_dim = D,
                                      .block = D == 256 ? 32 : 64,
                                      .splits = D == 256 ? 4 : 2,
                                      .stages = 1}>();
}

constexpr Variant kPlain = Variant::plain, kFeatured = Variant::featured;

constexpr Family kFamily{
    .forward = {{forward_of<64, kPlain>(), forward_of<64, kFeatured>()},
                {forward_of<128, kPlain>(), forward_of<128, kFeatured>()},
                {forward_of<256, kPlain>(), forward_of<256, kFeatured>()}},
    .bias = {bias_of<64>(), bias_of<128>(), bias_of<256>()},
    .backward = {{backward_of<64, kPlain, 64>(), backward_of<64, kFeatured, 64>()},
                 {backward_of<128, kPlain, 64>(), backward_of<128, kFeatured, 64>()},
                 {backward_of<256, kPlain, 32>(), backward_of<256, kFeatured, 32>()}},
};

}  // namespace

const Family& sm80_fp16() { return kFamily; }

}  // namespace tessera::cuda::flash1
