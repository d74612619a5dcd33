// The cases that cover the contract: each feature alone, at sizes that are no multiple of anything,
// and the combinations that have gone wrong in other libraries.
#include "reference/cases/case.h"

namespace tessera::reference {
namespace {

using Specs = std::vector<CaseSpec>;

void add_shapes(Specs& specs) {
  auto shape = [&](std::string name, std::int64_t q, std::int64_t k, std::int64_t dim) {
    specs.push_back({.name = std::move(name),
                     .feature = "dense",
                     .q_length = q,
                     .k_length = k,
                     .qk_dim = dim,
                     .v_dim = dim});
  };
  shape("square", 65, 65, 32);
  shape("one query", 1, 130, 64);
  shape("one key", 67, 1, 16);
  shape("more keys", 33, 129, 40);
  shape("fewer keys", 130, 31, 24);
  shape("head_dim 1", 50, 70, 1);
  shape("head_dim 13", 50, 70, 13);
  shape("head_dim 128", 70, 90, 128);
  shape("head_dim 256", 34, 66, 256);
  specs.push_back({.name = "long",
                   .feature = "dense",
                   .batch = 1,
                   .q_length = 5,
                   .k_length = 1543,
                   .q_heads = 2,
                   .kv_heads = 2});
  specs.push_back({.name = "v wider", .feature = "d_v != d_qk", .qk_dim = 24, .v_dim = 72});
  specs.push_back({.name = "v narrower", .feature = "d_v != d_qk", .qk_dim = 96, .v_dim = 5, .right = 0});
  specs.push_back({.name = "given scale", .feature = "scale", .scale = 0.3});
  specs.push_back({.name = "negative scale", .feature = "scale", .right = 0, .scale = -0.2});
  specs.push_back({.name = "large logits", .feature = "scale", .input_scale = 4});
}

void add_masks(Specs& specs) {
  auto mask = [&](std::string name, std::string feature, std::int64_t q, std::int64_t k, std::int64_t left,
                  std::int64_t right, Align align = Align::bottom_right) {
    specs.push_back({.name = std::move(name),
                     .feature = std::move(feature),
                     .q_length = q,
                     .k_length = k,
                     .left = left,
                     .right = right,
                     .align = align});
  };
  mask("square", "causal", 97, 97, -1, 0);
  mask("more keys", "causal", 45, 101, -1, 0);
  mask("fewer keys: empty rows", "causal", 101, 45, -1, 0);
  mask("top left, more keys", "causal top-left", 45, 101, -1, 0, Align::top_left);
  mask("top left, fewer keys", "causal top-left", 101, 45, -1, 0, Align::top_left);
  mask("both sides", "window", 131, 131, 17, 5);
  mask("only the diagonal", "window", 70, 70, 0, 0);
  mask("left only", "window", 70, 99, 40, -1);
  mask("right only", "window", 99, 70, -1, 3);
  mask("sliding causal", "window", 133, 133, 31, 0);
  mask("top left", "window", 120, 60, 8, 8, Align::top_left);
  specs.push_back({.name = "inside", .feature = "diagonal", .right = 0, .diagonal = 7});
  specs.push_back({.name = "negative: empty rows",
                   .feature = "diagonal",
                   .q_length = 80,
                   .left = 9,
                   .right = 2,
                   .diagonal = -20});
  specs.push_back({.name = "nothing visible", .feature = "diagonal", .right = 0, .diagonal = -200});
}

void add_block_masks(Specs& specs) {
  auto blocks = [&](std::string name, BlockKind kind) {
    specs.push_back({.name = std::move(name),
                     .feature = "block-sparse",
                     .q_length = 150,
                     .k_length = 150,
                     .blocks = kind,
                     .block_q = 16,
                     .block_k = 16});
  };
  blocks("local", BlockKind::local);
  blocks("strided", BlockKind::strided);
  blocks("fixed", BlockKind::fixed);
  blocks("big_bird", BlockKind::big_bird);
  blocks("butterfly", BlockKind::butterfly);
  blocks("random", BlockKind::random);
  blocks("random per head", BlockKind::random_per_head);
  specs.push_back({.name = "random, causal, uneven blocks",
                   .feature = "block-sparse",
                   .q_length = 111,
                   .k_length = 145,
                   .right = 0,
                   .blocks = BlockKind::random,
                   .block_q = 24,
                   .block_k = 40,
                   .seed = 3});
  specs.push_back({.name = "local, window, large blocks",
                   .feature = "block-sparse",
                   .q_length = 300,
                   .k_length = 300,
                   .q_heads = 2,
                   .kv_heads = 1,
                   .left = 100,
                   .right = 20,
                   .blocks = BlockKind::local,
                   .block_q = 96,
                   .block_k = 72});
  specs.push_back({.name = "per head, packed, GQA",
                   .feature = "block-sparse",
                   .batch = 4,
                   .q_length = 90,
                   .k_length = 77,
                   .kv_heads = 2,
                   .blocks = BlockKind::random_per_head,
                   .block_q = 16,
                   .block_k = 8,
                   .packed = true,
                   .seed = 4});
}

void add_heads_and_packing(Specs& specs) {
  specs.push_back({.name = "GQA 6/2", .feature = "GQA", .q_heads = 6, .kv_heads = 2});
  specs.push_back({.name = "MQA 8/1",
                   .feature = "GQA",
                   .q_heads = 8,
                   .kv_heads = 1,
                   .qk_dim = 16,
                   .v_dim = 24,
                   .right = 0});
  specs.push_back({.name = "one head", .feature = "GQA", .q_heads = 1, .kv_heads = 1});
  specs.push_back({.name = "plain", .feature = "varlen", .batch = 5, .packed = true});
  specs.push_back({.name = "causal", .feature = "varlen", .batch = 5, .right = 0, .packed = true, .seed = 2});
  specs.push_back({.name = "window, GQA",
                   .feature = "varlen",
                   .batch = 6,
                   .q_heads = 4,
                   .kv_heads = 2,
                   .left = 12,
                   .right = 4,
                   .packed = true,
                   .seed = 3});
  specs.push_back({.name = "causal, top left",
                   .feature = "varlen",
                   .batch = 4,
                   .k_length = 90,
                   .right = 0,
                   .align = Align::top_left,
                   .packed = true,
                   .seed = 4});
  specs.push_back({.name = "bias, ALiBi, dropout",
                   .feature = "varlen",
                   .batch = 4,
                   .packed = true,
                   .bias = BiasKind::full,
                   .alibi = true,
                   .dropout = 0.25,
                   .grad_lse = true,
                   .seed = 5});
}

void add_scores(Specs& specs) {
  auto bias = [&](std::string name, BiasKind kind, bool accumulator_type) {
    specs.push_back({.name = std::move(name),
                     .feature = "bias",
                     .batch = 3,
                     .q_length = 47,
                     .k_length = 71,
                     .bias = kind,
                     .bias_in_accumulator_type = accumulator_type});
  };
  bias("full", BiasKind::full, false);
  bias("per head", BiasKind::per_head, true);
  bias("per batch", BiasKind::per_batch, false);
  bias("row", BiasKind::row, true);
  specs.push_back({.name = "causal, GQA, row",
                   .feature = "bias",
                   .q_heads = 6,
                   .kv_heads = 3,
                   .right = 0,
                   .bias = BiasKind::row});
  specs.push_back({.name = "dense", .feature = "ALiBi", .q_length = 60, .k_length = 85, .alibi = true});
  specs.push_back({.name = "causal", .feature = "ALiBi", .right = 0, .alibi = true});
  specs.push_back({.name = "per batch, top left",
                   .feature = "ALiBi",
                   .q_length = 85,
                   .k_length = 60,
                   .align = Align::top_left,
                   .alibi = true,
                   .alibi_per_batch = true});
  specs.push_back({.name = "cap 5", .feature = "softcap", .softcap = 5, .input_scale = 2});
  specs.push_back({.name = "cap 30, causal, bias",
                   .feature = "softcap",
                   .right = 0,
                   .bias = BiasKind::per_head,
                   .softcap = 30,
                   .input_scale = 2});
  specs.push_back({.name = "dense", .feature = "LSE gradient", .grad_lse = true});
  specs.push_back({.name = "causal, empty rows",
                   .feature = "LSE gradient",
                   .q_length = 90,
                   .k_length = 60,
                   .right = 0,
                   .grad_lse = true});
}

void add_visible(Specs& specs) {
  auto visible = [&](std::string name, VisibleKind kind, std::int64_t q, std::int64_t k) {
    specs.push_back({.name = std::move(name),
                     .feature = "boolean mask",
                     .batch = 2,
                     .q_length = q,
                     .k_length = k,
                     .q_heads = 2,
                     .kv_heads = 2,
                     .visible = kind});
  };
  visible("full", VisibleKind::full, 147, 211);
  visible("per head", VisibleKind::per_head, 70, 300);
  visible("per batch", VisibleKind::per_batch, 300, 70);
  visible("row", VisibleKind::row, 47, 171);
  visible("padding", VisibleKind::padding, 65, 171);
  visible("one query", VisibleKind::full, 1, 311);
  visible("a few queries", VisibleKind::per_head, 7, 290);
  specs.push_back({.name = "padding, causal, GQA",
                   .feature = "boolean mask",
                   .q_length = 145,
                   .k_length = 145,
                   .q_heads = 6,
                   .kv_heads = 3,
                   .right = 0,
                   .seed = 3,
                   .visible = VisibleKind::padding});
  specs.push_back({.name = "per head, window, bias, softcap, dropout, block-sparse",
                   .feature = "boolean mask",
                   .q_length = 130,
                   .k_length = 150,
                   .kv_heads = 2,
                   .left = 90,
                   .right = 30,
                   .blocks = BlockKind::random_per_head,
                   .block_q = 40,
                   .block_k = 24,
                   .bias = BiasKind::per_head,
                   .alibi = true,
                   .softcap = 6,
                   .dropout = 0.2,
                   .grad_lse = true,
                   .seed = 5,
                   .visible = VisibleKind::per_head});
  specs.push_back({.name = "full, packed, causal",
                   .feature = "boolean mask",
                   .batch = 5,
                   .q_length = 140,
                   .k_length = 90,
                   .q_heads = 4,
                   .kv_heads = 2,
                   .right = 0,
                   .packed = true,
                   .seed = 6,
                   .visible = VisibleKind::full});
}

void add_dropout_and_origin(Specs& specs) {
  specs.push_back({.name = "p = 0.1", .feature = "dropout", .dropout = 0.1});
  specs.push_back({.name = "p = 0.5, causal, GQA",
                   .feature = "dropout",
                   .q_heads = 4,
                   .kv_heads = 2,
                   .right = 0,
                   .dropout = 0.5});
  specs.push_back({.name = "p = 0.9", .feature = "dropout", .k_length = 200, .dropout = 0.9});
  specs.push_back({.name = "seed by pointer", .feature = "dropout", .dropout = 0.3, .dropout_state = true});
  const Origin origin{.row = 1021, .column = 1003, .batch = 7, .head = 3};
  specs.push_back({.name = "causal, top left",
                   .feature = "origin",
                   .right = 0,
                   .align = Align::top_left,
                   .origin = origin});
  specs.push_back({.name = "window, ALiBi, diagonal",
                   .feature = "origin",
                   .left = 20,
                   .right = 6,
                   .diagonal = -5,
                   .alibi = true,
                   .origin = origin});
  specs.push_back({.name = "dropout", .feature = "origin", .dropout = 0.4, .origin = origin});
  specs.push_back({.name = "bottom right, dropout",
                   .feature = "origin",
                   .q_length = 50,
                   .right = 0,
                   .dropout = 0.2,
                   .origin = origin});
  specs.push_back({.name = "everything",
                   .feature = "combined",
                   .batch = 3,
                   .q_length = 77,
                   .k_length = 103,
                   .q_heads = 6,
                   .kv_heads = 2,
                   .qk_dim = 33,
                   .v_dim = 17,
                   .left = 60,
                   .right = 4,
                   .blocks = BlockKind::random_per_head,
                   .block_q = 16,
                   .block_k = 24,
                   .bias = BiasKind::full,
                   .alibi = true,
                   .softcap = 8,
                   .dropout = 0.15,
                   .grad_lse = true,
                   .seed = 9});
  specs.push_back({.name = "everything, packed",
                   .feature = "combined",
                   .batch = 5,
                   .q_length = 77,
                   .k_length = 60,
                   .q_heads = 4,
                   .kv_heads = 1,
                   .qk_dim = 20,
                   .v_dim = 36,
                   .left = 40,
                   .right = 0,
                   .blocks = BlockKind::big_bird,
                   .block_q = 16,
                   .block_k = 16,
                   .packed = true,
                   .bias = BiasKind::per_head,
                   .alibi = true,
                   .softcap = 10,
                   .dropout = 0.1,
                   .grad_lse = true,
                   .origin = {.batch = 11, .head = 2},
                   .seed = 10});
}

}  // namespace

std::vector<CaseSpec> feature_matrix(DType dtype) {
  Specs specs;
  add_shapes(specs);
  add_masks(specs);
  add_block_masks(specs);
  add_heads_and_packing(specs);
  add_scores(specs);
  add_visible(specs);
  add_dropout_and_origin(specs);
  for (CaseSpec& spec : specs) spec.dtype = dtype;
  return specs;
}

}  // namespace tessera::reference
