// forward and backward: arrays in, one call of the library without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

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

// Whether a call ends sooner than other threads wake up. Such a call uses only its
// own thread; no result depends on it.
bool too_small_for_threads(const Tensor& q, const Tensor& k) {
  const double pairs =
      static_cast<double>(q.shape[0] * q.shape[2]) * static_cast<double>(q.shape[1] * k.shape[1]);
  return pairs * static_cast<double>(4 * q.shape[3]) < 1e6;
}

// The arguments of a call besides options and tensors: keywords, in this order.
struct CallOptions {
  nb::handle alibi, lengths_q, lengths_k, max_q, max_k, seed, offset, dropout_state, visible, stream, threads;
  bool workspace_from_q;
};

std::optional<std::uintptr_t> stream_of(nb::handle stream) {
  if (stream.is_none()) return {};
  return bits64("stream", stream);
}

// One call: borrows every array until it ends.
class Call {
 public:
  Call(const Options& options, const CallOptions& call, int layout)
      : call_(call),
        layout_(layout_of(layout)),
        stream_{stream_of(call.stream)},
        attention_(options.attention) {}

  Tensor tokens(const char* name, nb::handle array) { return take(name, array, TensorRole::tokens); }
  Tensor lse(const char* name, nb::handle array) { return take(name, array, TensorRole::lse); }
  Tensor bias(const char* name, nb::handle array) { return take(name, array, TensorRole::bias); }

  Tensor visible() { return take("visible", call_.visible, TensorRole::visible); }

  // Runs the call. The other arguments follow from q, which must be the first array taken.
  template <typename Tensors>
  void run(void (*function)(const Attention&, const Tensors&, const Execution&), const Tensors& tensors) {
    take_lengths();
    take_alibi(tensors.q);
    take_dropout();
    Execution execution{.threads = thread_count(call_.threads)};
    if (execution.threads == 0 && too_small_for_threads(tensors.q, tensors.k)) execution.threads = 1;
    const Array& q = *arrays_.front();
    const dlpack::Exchange* lender = call_.workspace_from_q ? q.lender() : nullptr;
    if (tensors.q.device.type == DeviceType::cuda) {
      const std::optional<std::uintptr_t> current =
          lender != nullptr || !stream_.asked ? q.current_stream() : std::nullopt;
      const std::uintptr_t stream = stream_.asked ? *stream_.asked : current.value_or(0);
      execution.stream = reinterpret_cast<void*>(stream);
      if (current != stream) lender = nullptr;  // its allocator works on its current stream only
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

  // An array that becomes a bare pointer must be on the device of q.
  const Array& borrow_beside_q(const char* name, nb::handle object) {
    const Array& array = borrow(name, object);
    const Device q = arrays_.front()->device();
    if (array.device() != q) {
      refuse(std::string(name) + " is on " + to_string(array.device()) + "; it must be on " + to_string(q) +
             ", as q");
    }
    return array;
  }

  Tensor take(const char* name, nb::handle array, TensorRole role) {
    if (array.is_none()) return {};
    return borrow(name, array).tensor(role, layout_);
  }

  void take_lengths() {
    if (call_.lengths_q.is_none() && call_.lengths_k.is_none()) return;
    if (call_.lengths_q.is_none() || call_.lengths_k.is_none()) {
      refuse("only one of lengths_q and lengths_k is given; pass both");
    }
    constexpr dlpack::Type int32{dlpack::kInt, 32, 1};
    const auto q = borrow_beside_q("lengths_q", call_.lengths_q).flat<std::int32_t>(int32);
    const auto k = borrow_beside_q("lengths_k", call_.lengths_k).flat<std::int32_t>(int32);
    if (q.empty() || q.size() != k.size()) {
      refuse("lengths_q has " + std::to_string(q.size()) + " entries and lengths_k " +
             std::to_string(k.size()) + "; both must have one more than there are sequences");
    }
    attention_.mask.lengths = {.q = q.data(),
                               .k = k.data(),
                               .count = static_cast<std::int64_t>(q.size()) - 1,
                               .max_q = integer("max_q", call_.max_q),
                               .max_k = integer("max_k", call_.max_k)};
  }

  void take_alibi(const Tensor& q) {
    if (call_.alibi.is_none()) return;
    const Array& array = borrow_beside_q("alibi", call_.alibi);
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
    if (gaps) refuse("alibi.strides[-1] is " + std::to_string(view.strides[last]) + "; it must be 1");
    const bool shared = view.ndim == 1 || view.shape[0] == 1;
    attention_.alibi = {.slopes = static_cast<const float*>(array.data()),
                        .batch_stride = shared                    ? 0
                                        : view.strides != nullptr ? view.strides[0]
                                                                  : view.shape[1]};
  }

  void take_dropout() {
    attention_.dropout.seed = bits64("seed", call_.seed);
    attention_.dropout.offset = bits64("offset", call_.offset);
    if (call_.dropout_state.is_none()) return;
    const auto state = borrow_beside_q("dropout_state", call_.dropout_state)
                           .flat<std::uint64_t>({dlpack::kUInt, 64, 1}, dlpack::Type{dlpack::kInt, 64, 1});
    if (state.size() != 2) {
      refuse("dropout_state has " + std::to_string(state.size()) +
             " entries; it must have 2, seed and offset");
    }
    attention_.dropout.state = state.data();
  }

  CallOptions call_;
  Layout layout_;
  Stream stream_;
  Attention attention_;
  std::array<std::optional<Array>, 17> arrays_;  // q first; backward has 12 tensors, and there are 5 others
  std::size_t count_ = 0;
};

template <std::size_t>
using Handle = nb::handle;

// Defines a call: `body(call, tensors)` with the options, the tensors that `names`
// lists, and CallOptions as keywords.
template <std::size_t... I, typename Body, typename... Names>
void define(nb::module_& module, const char* function, std::index_sequence<I...>, Body body, const char* text,
            const Names&... names) {
  using namespace nb::literals;
  static_assert(sizeof...(I) == sizeof...(Names));
  module.def(
      function,
      [body](const Options& options, Handle<I>... tensors, nb::handle alibi, nb::handle lengths_q,
             nb::handle lengths_k, nb::handle max_q, nb::handle max_k, nb::handle seed, nb::handle offset,
             nb::handle dropout_state, nb::handle visible, int layout, nb::handle stream, nb::handle threads,
             bool workspace_from_q) {
        Call call(options,
                  {alibi, lengths_q, lengths_k, max_q, max_k, seed, offset, dropout_state, visible, stream,
                   threads, workspace_from_q},
                  layout);
        body(call, std::array{tensors...});
      },
      "options"_a, names..., nb::kw_only(), "alibi"_a.none() = nb::none(), "lengths_q"_a.none() = nb::none(),
      "lengths_k"_a.none() = nb::none(), "max_q"_a.none() = 0, "max_k"_a.none() = 0, "seed"_a.none() = 0,
      "offset"_a.none() = 0, "dropout_state"_a.none() = nb::none(), "visible"_a.none() = nb::none(),
      "layout"_a = 0, "stream"_a.none() = nb::none(), "threads"_a.none() = 0, "workspace_from_q"_a = false,
      text);
}

}  // namespace

void add_calls(nb::module_& module) {
  using namespace nb::literals;
  define(
      module, "forward", std::make_index_sequence<6>(),
      [](Call& call, const std::array<nb::handle, 6>& array) {
        const auto& [q, k, v, bias, out, lse] = array;
        call.run<ForwardTensors>(&tessera::forward, {.q = call.tokens("q", q),
                                                     .k = call.tokens("k", k),
                                                     .v = call.tokens("v", v),
                                                     .bias = call.bias("bias", bias),
                                                     .out = call.tokens("out", out),
                                                     .lse = call.lse("lse", lse),
                                                     .visible = call.visible()});
      },
      "Computes attention into out and, unless None, lse.", "q"_a, "k"_a, "v"_a, "bias"_a.none(), "out"_a,
      "lse"_a.none());
  define(
      module, "backward", std::make_index_sequence<12>(),
      [](Call& call, const std::array<nb::handle, 12>& array) {
        const auto& [q, k, v, bias, out, lse, grad_out, grad_lse, grad_q, grad_k, grad_v, grad_bias] = array;
        call.run<BackwardTensors>(&tessera::backward, {.q = call.tokens("q", q),
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
                                                       .grad_bias = call.bias("grad_bias", grad_bias),
                                                       .visible = call.visible()});
      },
      "Computes the gradients that are not None.", "q"_a, "k"_a, "v"_a, "bias"_a.none(), "out"_a, "lse"_a,
      "grad_out"_a, "grad_lse"_a.none(), "grad_q"_a.none(), "grad_k"_a.none(), "grad_v"_a.none(),
      "grad_bias"_a.none());

  module.def(
      "current_stream", [](nb::handle array) { return Array("array", array, {}).current_stream(); },
      "array"_a, "The current stream of the library that owns a GPU array; None when it cannot be asked.");
}

}  // namespace tessera::python
