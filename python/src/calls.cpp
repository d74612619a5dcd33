// forward and backward: arrays in, one call of the library without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <optional>
#include <string>

#include "arguments.h"
#include "array.h"
#include "options.h"
#include "tessera/error.h"
#include "workspace.h"

namespace tessera::python {
namespace {

Layout layout_of(int layout) {
  if (layout != 0 && layout != 1) {
    refuse("layout is " + std::to_string(layout) +
           "; it must be 0 (batch, sequence, heads, head_dim) or 1 (batch, heads, sequence, head_dim)");
  }
  return layout == 0 ? Layout::sequence_first : Layout::heads_first;
}

// Whether a call is over sooner than other threads could be woken: then it stays in its own. No result depends on it.
bool small(const Tensor& q, const Tensor& k) {
  const double pairs =
      static_cast<double>(q.shape[0] * q.shape[2]) * static_cast<double>(q.shape[1] * k.shape[1]);
  return pairs * static_cast<double>(4 * q.shape[3]) < 1e6;
}

// What besides the tensors a call is given.
struct Side {
  nb::handle alibi, lengths_q, lengths_k, max_q, max_k, seed, offset, dropout_state, stream, threads;
  bool workspace_from_q;
};

std::optional<std::uintptr_t> stream_of(nb::handle stream) {
  if (stream.is_none()) return {};
  return bits64("stream", stream);
}

// One call in the making: borrows every array until it ends.
class Call {
 public:
  Call(const Options& options, const Side& side, int layout)
      : side_(side),
        layout_(layout_of(layout)),
        stream_{stream_of(side.stream)},
        attention_(options.attention) {}

  Tensor tokens(const char* name, nb::handle array) { return take(name, array, TensorRole::tokens); }
  Tensor lse(const char* name, nb::handle array) { return take(name, array, TensorRole::lse); }
  Tensor bias(const char* name, nb::handle array) { return take(name, array, TensorRole::bias); }

  // The rest of the description, once q is there.
  template <typename Tensors>
  void run(void (*function)(const Attention&, const Tensors&, const Execution&), const Tensors& tensors) {
    take_lengths();
    take_alibi(tensors.q);
    take_dropout();
    Execution execution{.threads = thread_count(side_.threads)};
    if (execution.threads == 0 && small(tensors.q, tensors.k)) execution.threads = 1;
    const Array& q = *arrays_.front();
    const dlpack::Exchange* lender = side_.workspace_from_q ? q.lender() : nullptr;
    if (tensors.q.device.type == DeviceType::cuda) {
      const std::optional<std::uintptr_t> current =
          lender != nullptr || !stream_.asked ? q.current_stream() : std::nullopt;
      const std::uintptr_t stream = stream_.asked ? *stream_.asked : current.value_or(0);
      execution.stream = reinterpret_cast<void*>(stream);
      if (current != stream) lender = nullptr;  // it lends to its current stream only
    }
    nb::gil_scoped_release unlocked;
    if (lender == nullptr) return function(attention_, tensors, execution);
    LibraryWorkspace workspace(*lender, q.view().device);
    execution.allocator = &workspace;
    try {
      function(attention_, tensors, execution);
    } catch (const Error& error) {
      if (workspace.refusal().empty()) throw;
      throw Error(error.code(), std::string(error.what()) + ": " + workspace.refusal());
    }
  }

 private:
  const Array& borrow(const char* name, nb::handle array) {
    return arrays_[count_++].emplace(name, array, stream_);
  }

  // An array that is not a tensor must lie beside q: the library gets a bare pointer.
  const Array& borrow_beside_q(const char* name, nb::handle object) {
    const Array& array = borrow(name, object);
    const Device q = arrays_.front()->device();
    if (array.device() != q) {
      refuse(std::string(name) + " lies on " + text_of(array.device()) + "; it must be on " + text_of(q) +
             ", as q");
    }
    return array;
  }

  Tensor take(const char* name, nb::handle array, TensorRole role) {
    if (array.is_none()) return {};
    return borrow(name, array).tensor(role, layout_);
  }

  void take_lengths() {
    if (side_.lengths_q.is_none() && side_.lengths_k.is_none()) return;
    if (side_.lengths_q.is_none() || side_.lengths_k.is_none()) {
      refuse("lengths_q and lengths_k must be given together");
    }
    constexpr dlpack::Type int32{dlpack::kInt, 32, 1};
    const auto q = borrow_beside_q("lengths_q", side_.lengths_q).flat<std::int32_t>(int32);
    const auto k = borrow_beside_q("lengths_k", side_.lengths_k).flat<std::int32_t>(int32);
    if (q.empty() || q.size() != k.size()) {
      refuse("lengths_q has " + std::to_string(q.size()) + " entries and lengths_k " +
             std::to_string(k.size()) + "; both must have one more than there are sequences");
    }
    attention_.mask.lengths = {.q = q.data(),
                               .k = k.data(),
                               .count = static_cast<std::int64_t>(q.size()) - 1,
                               .max_q = integer("max_q", side_.max_q),
                               .max_k = integer("max_k", side_.max_k)};
  }

  void take_alibi(const Tensor& q) {
    if (side_.alibi.is_none()) return;
    const Array& array = borrow_beside_q("alibi", side_.alibi);
    const dlpack::Tensor& view = array.view();
    if (view.dtype.code != dlpack::kFloat || view.dtype.bits != 32) {
      refuse("alibi.dtype is " + array.dtype_name() + "; it must be float32");
    }
    const std::int64_t batch = attention_.mask.lengths.count > 0 ? attention_.mask.lengths.count : q.shape[0];
    const int last = view.ndim - 1;
    const bool heads_fit = (view.ndim == 1 || view.ndim == 2) && view.shape[last] == q.shape[2];
    if (!heads_fit || (view.ndim == 2 && view.shape[0] != batch && view.shape[0] != 1)) {
      std::string shape;
      for (int i = 0; i < view.ndim; ++i) shape += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
      refuse("alibi.shape is (" + shape + "); it must be (" + std::to_string(q.shape[2]) + ") or (" +
             std::to_string(batch) + ", " + std::to_string(q.shape[2]) +
             "), the heads of q, for each batch entry");
    }
    const bool gaps = view.strides != nullptr && view.shape[last] > 1 && view.strides[last] != 1;
    if (gaps) refuse("alibi.strides: the slopes of the heads must lie side by side");
    const bool shared = view.ndim == 1 || view.shape[0] == 1;
    attention_.alibi = {.slopes = static_cast<const float*>(array.data()),
                        .batch_stride = shared                    ? 0
                                        : view.strides != nullptr ? view.strides[0]
                                                                  : view.shape[1]};
  }

  void take_dropout() {
    attention_.dropout.seed = bits64("seed", side_.seed);
    attention_.dropout.offset = bits64("offset", side_.offset);
    if (side_.dropout_state.is_none()) return;
    const auto state = borrow_beside_q("dropout_state", side_.dropout_state)
                           .flat<std::uint64_t>({dlpack::kUInt, 64, 1}, dlpack::Type{dlpack::kInt, 64, 1});
    if (state.size() != 2) {
      refuse("dropout_state has " + std::to_string(state.size()) +
             " entries; it must have 2, seed and offset");
    }
    attention_.dropout.state = state.data();
  }

  Side side_;
  Layout layout_;
  Stream stream_;
  Attention attention_;
  std::array<std::optional<Array>, 16> arrays_;  // q first; backward has 12 tensors, and there are 4 others
  std::size_t count_ = 0;
};

}  // namespace

void add_calls(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "forward",
      [](const Options& options, nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle out,
         nb::handle lse, nb::handle alibi, nb::handle lengths_q, nb::handle lengths_k, nb::handle max_q,
         nb::handle max_k, nb::handle seed, nb::handle offset, nb::handle dropout_state, int layout,
         nb::handle stream, nb::handle threads, bool workspace_from_q) {
        Call call(options,
                  {alibi, lengths_q, lengths_k, max_q, max_k, seed, offset, dropout_state, stream, threads,
                   workspace_from_q},
                  layout);
        const ForwardTensors tensors{.q = call.tokens("q", q),
                                     .k = call.tokens("k", k),
                                     .v = call.tokens("v", v),
                                     .bias = call.bias("bias", bias),
                                     .out = call.tokens("out", out),
                                     .lse = call.lse("lse", lse)};
        call.run<ForwardTensors>(&tessera::forward, tensors);
      },
      "options"_a, "q"_a, "k"_a, "v"_a, "bias"_a.none(), "out"_a, "lse"_a.none(),
      "alibi"_a.none() = nb::none(), "lengths_q"_a.none() = nb::none(), "lengths_k"_a.none() = nb::none(),
      "max_q"_a.none() = 0, "max_k"_a.none() = 0, "seed"_a.none() = 0, "offset"_a.none() = 0,
      "dropout_state"_a.none() = nb::none(), "layout"_a = 0, "stream"_a.none() = nb::none(),
      "threads"_a.none() = 0, "workspace_from_q"_a = false,
      "Computes attention into out and, unless None, lse.");

  module.def(
      "backward",
      [](const Options& options, nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle out,
         nb::handle lse, nb::handle grad_out, nb::handle grad_lse, nb::handle grad_q, nb::handle grad_k,
         nb::handle grad_v, nb::handle grad_bias, nb::handle alibi, nb::handle lengths_q,
         nb::handle lengths_k, nb::handle max_q, nb::handle max_k, nb::handle seed, nb::handle offset,
         nb::handle dropout_state, int layout, nb::handle stream, nb::handle threads, bool workspace_from_q) {
        Call call(options,
                  {alibi, lengths_q, lengths_k, max_q, max_k, seed, offset, dropout_state, stream, threads,
                   workspace_from_q},
                  layout);
        const BackwardTensors tensors{.q = call.tokens("q", q),
                                      .k = call.tokens("k", k),
                                      .v = call.tokens("v", v),
                                      .bias = call.bias("bias", bias),
                                      .out = call.tokens("out", out),
                                      .lse = call.lse("lse", lse),
                                      .grad_out = call.tokens("grad_out", grad_out),
                                      .grad_lse = call.lse("grad_lse", grad_lse),
                                      .grad_q = call.tokens("grad_q", grad_q),
                                      .grad_k = call.tokens("grad_k", grad_k),
                                      .grad_v = call.tokens("grad_v", grad_v),
                                      .grad_bias = call.bias("grad_bias", grad_bias)};
        call.run<BackwardTensors>(&tessera::backward, tensors);
      },
      "options"_a, "q"_a, "k"_a, "v"_a, "bias"_a.none(), "out"_a, "lse"_a, "grad_out"_a, "grad_lse"_a.none(),
      "grad_q"_a.none(), "grad_k"_a.none(), "grad_v"_a.none(), "grad_bias"_a.none(),
      "alibi"_a.none() = nb::none(), "lengths_q"_a.none() = nb::none(), "lengths_k"_a.none() = nb::none(),
      "max_q"_a.none() = 0, "max_k"_a.none() = 0, "seed"_a.none() = 0, "offset"_a.none() = 0,
      "dropout_state"_a.none() = nb::none(), "layout"_a = 0, "stream"_a.none() = nb::none(),
      "threads"_a.none() = 0, "workspace_from_q"_a = false, "Computes the gradients that are not None.");

  module.def(
      "current_stream", [](nb::handle array) { return Array("array", array, {}).current_stream(); },
      "array"_a, "The stream on which the library of a GPU array is working, where it can be asked.");
}

}  // namespace tessera::python
