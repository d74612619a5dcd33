// BlockMask: the library's class, with the sizes as arguments and arrays of any library.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "array.h"
#include "options.h"
#include "tessera/mask.h"

namespace tessera::python {
namespace {

using namespace nb::literals;
using Row = std::vector<std::int32_t>;
using State = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::vector<std::int64_t>, std::vector<std::int32_t>>;

// One flag per element of an array of bools or bytes with two dimensions, or three
// when heads differ.
struct Flags {
  std::int64_t heads, rows, columns;
  std::vector<std::uint8_t> values;
};

Flags flags_of(const char* name, nb::handle object) {
  const Array array(name, object, {});
  const dlpack::Tensor& view = array.view();
  if (array.on_gpu()) refuse(std::string(name) + " is on a GPU; it must be in host memory");
  if (view.dtype.bits != 8 || view.dtype.lanes != 1) {
    refuse(std::string(name) + ".dtype is " + array.dtype_name() + "; it must be bool or uint8");
  }
  if (view.ndim != 2 && view.ndim != 3) {
    refuse(std::string(name) + ".ndim is " + std::to_string(view.ndim) +
           "; it must be 2 (queries, keys) or 3 (heads, queries, keys)");
  }
  const std::int64_t* shape = view.shape + (view.ndim - 2);
  Flags flags{view.ndim == 3 ? view.shape[0] : 1, shape[0], shape[1], {}};
  const std::int64_t column_step = view.strides != nullptr ? view.strides[view.ndim - 1] : 1;
  const std::int64_t row_step = view.strides != nullptr ? view.strides[view.ndim - 2] : flags.columns;
  const std::int64_t head_step = view.ndim < 3             ? 0
                                 : view.strides != nullptr ? view.strides[0]
                                                           : flags.rows * flags.columns;
  flags.values.reserve(static_cast<std::size_t>(flags.heads * flags.rows * flags.columns));
  const auto* data = static_cast<const std::uint8_t*>(array.data());
  for (std::int64_t h = 0; h < flags.heads; ++h) {
    for (std::int64_t i = 0; i < flags.rows; ++i) {
      for (std::int64_t j = 0; j < flags.columns; ++j) {
        flags.values.push_back(data[h * head_step + i * row_step + j * column_step] != 0 ? 1 : 0);
      }
    }
  }
  return flags;
}

BlockMask from_blocks(nb::handle kept, nb::handle q_length, nb::handle k_length, nb::handle block_q,
                      nb::handle block_k) {
  const Flags flags = flags_of("kept", kept);
  // An omitted length is that of whole blocks.
  auto length_of = [](const char* name, nb::handle given, std::int64_t blocks, std::int64_t block) {
    if (!given.is_none()) return integer(name, given);
    if (block < 1 || blocks <= std::numeric_limits<std::int64_t>::max() / block) return blocks * block;
    refuse(std::string(name) + " is omitted, and " + std::to_string(blocks) + " blocks of " +
           std::to_string(block) + " make more than 2^63 - 1");
  };
  auto check = [](const char* name, std::int64_t length, std::int64_t block, std::int64_t blocks) {
    if (block >= 1 && length >= 1 && (length - 1) / block + 1 != blocks) {
      refuse(std::string(name) + " is " + std::to_string(length) + "; with blocks of " +
             std::to_string(block) + " it must have " + std::to_string(blocks) + " blocks, as kept has");
    }
  };
  const std::int64_t q_size = integer("block_q", block_q), k_size = integer("block_k", block_k);
  const BlockLayout layout{length_of("q_length", q_length, flags.rows, q_size),
                           length_of("k_length", k_length, flags.columns, k_size), q_size, k_size,
                           flags.heads};
  check("q_length", layout.q_length, q_size, flags.rows);
  check("k_length", layout.k_length, k_size, flags.columns);
  return BlockMask::from_blocks(layout, flags.values);
}

BlockMask from_dense(nb::handle visible, nb::handle block_q, nb::handle block_k) {
  const Flags flags = flags_of("visible", visible);
  const BlockLayout layout{flags.rows, flags.columns, integer("block_q", block_q),
                           integer("block_k", block_k), flags.heads};
  return BlockMask::from_dense(layout, flags.values);
}

// The integers of a sequence, or of an array with `tolist`.
template <typename T>
std::vector<T> integers(const char* name, nb::handle object) {
  nb::object list = nb::hasattr(object, "tolist") ? nb::object(object.attr("tolist")()) : nb::borrow(object);
  if (!nb::isinstance<nb::sequence>(list) || nb::isinstance<nb::str>(list)) {
    refuse(std::string(name) + " is " + shown(object) + "; it must be a sequence of integers");
  }
  std::vector<T> values;
  values.reserve(nb::len(list));
  for (nb::handle item : list) {
    const std::int64_t value = integer((name + ("[" + std::to_string(values.size()) + "]")).c_str(), item);
    if (!std::in_range<T>(value)) {
      refuse(std::string(name) + "[" + std::to_string(values.size()) + "] is " + std::to_string(value) +
             "; it must fit " + std::to_string(8 * sizeof(T)) + " bits");
    }
    values.push_back(static_cast<T>(value));
  }
  return values;
}

BlockLayout layout_of(nb::handle q_length, nb::handle k_length, nb::handle block_q, nb::handle block_k,
                      nb::handle heads) {
  return {integer("q_length", q_length), integer("k_length", k_length), integer("block_q", block_q),
          integer("block_k", block_k), integer("heads", heads)};
}

State state_of(const BlockMask& mask) {
  const BlockLayout& layout = mask.layout();
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int32_t> columns;
  for (std::int64_t head = 0; head < layout.heads; ++head) {
    for (std::int64_t row = 0; row < mask.q_blocks(); ++row) {
      const auto kept = mask.row(head, row);
      columns.insert(columns.end(), kept.begin(), kept.end());
      offsets.push_back(static_cast<std::int64_t>(columns.size()));
    }
  }
  return {layout.q_length, layout.k_length,    layout.block_q,    layout.block_k,
          layout.heads,    std::move(offsets), std::move(columns)};
}

Row copy(std::span<const std::int32_t> blocks) { return {blocks.begin(), blocks.end()}; }

std::string description(const BlockMask& mask) {
  const BlockLayout& layout = mask.layout();
  return "<BlockMask " + std::to_string(layout.q_length) + " x " + std::to_string(layout.k_length) +
         " in blocks of " + std::to_string(layout.block_q) + " x " + std::to_string(layout.block_k) +
         (layout.heads > 1 ? ", " + std::to_string(layout.heads) + " heads" : "") + ", " +
         std::to_string(mask.kept()) + " of " +
         std::to_string(mask.q_blocks() * mask.k_blocks() * layout.heads) + " kept>";
}

void prepare(const BlockMask& mask, nb::handle gpu) {
  const std::int64_t index = integer("gpu", gpu);
  if (!std::in_range<int>(index)) refuse("gpu is " + shown(gpu) + "; it must fit 32 bits");
  const nb::gil_scoped_release unlocked;
  mask.prepare(Device::cuda(static_cast<int>(index)));
}

// One argument of a preset, for each of its parameters.
template <typename>
using Handle = nb::handle;

// A preset: its own arguments between the lengths and the block sizes.
template <typename... Own, typename... Annotations>
void preset(nb::class_<BlockMask>& type, const char* name, BlockMask (*make)(const BlockLayout&, Own...),
            const char* doc, const Annotations&... own) {
  type.def_static(
      name,
      [make, ... names = own.name_](nb::handle q_length, nb::handle k_length, Handle<Own>... arguments,
                                    nb::handle block_q, nb::handle block_k, nb::handle heads) {
        return make(layout_of(q_length, k_length, block_q, block_k, heads),
                    argument<Own>(names, arguments)...);
      },
      "q_length"_a.none(), "k_length"_a.none(), own..., nb::kw_only(), "block_q"_a.none() = 128,
      "block_k"_a.none() = 128, "heads"_a.none() = 1, doc);
}

}  // namespace

void add_block_mask(nb::module_& module) {
  nb::class_<BlockMask> type(module, "BlockMask",
                             "For each block of queries, the blocks of keys that the mask keeps. Immutable.");
  type.def_static(
      "from_csr",
      [](nb::handle q_length, nb::handle k_length, nb::handle row_offsets, nb::handle columns,
         nb::handle block_q, nb::handle block_k, nb::handle heads) {
        return BlockMask::from_csr(layout_of(q_length, k_length, block_q, block_k, heads),
                                   integers<std::int64_t>("row_offsets", row_offsets),
                                   integers<std::int32_t>("columns", columns));
      },
      "q_length"_a.none(), "k_length"_a.none(), "row_offsets"_a.none(), "columns"_a.none(), nb::kw_only(),
      "block_q"_a.none() = 128, "block_k"_a.none() = 128, "heads"_a.none() = 1,
      "From compressed rows: row r keeps columns[row_offsets[r]:row_offsets[r + 1]], ascending.");
  type.def_static("from_blocks", &from_blocks, "kept"_a.none(), nb::kw_only(),
                  "q_length"_a.none() = nb::none(), "k_length"_a.none() = nb::none(),
                  "block_q"_a.none() = 128, "block_k"_a.none() = 128,
                  "From one flag per block, an array ([heads,] q_blocks, k_blocks).");
  type.def_static("from_dense", &from_dense, "visible"_a.none(), nb::kw_only(), "block_q"_a.none() = 128,
                  "block_k"_a.none() = 128,
                  "From one flag per element, an array ([heads,] queries, keys) in which blocks are whole.");
  preset(type, "local", &BlockMask::local,
         "Keeps the blocks at most `radius` blocks away from the diagonal block.", "radius"_a.none());
  preset(type, "strided", &BlockMask::strided,
         "Sparse Transformer: fewer than `stride` blocks from the diagonal block, or a multiple of it.",
         "stride"_a.none());
  preset(type, "fixed", &BlockMask::fixed,
         "Sparse Transformer: the diagonal block's group of `stride` blocks, and the last `summary` of every "
         "group.",
         "stride"_a.none(), "summary"_a.none() = 1);
  preset(
      type, "big_bird", &BlockMask::big_bird,
      "BigBird: local, the first `global_blocks` rows and columns, and `random_blocks` further ones per row.",
      "radius"_a.none(), "global_blocks"_a.none(), "random_blocks"_a.none(), "seed"_a.none() = 0);
  preset(type, "butterfly", &BlockMask::butterfly,
         "Keeps the diagonal block and the blocks whose index differs from its index in one bit.");
  preset(type, "random", &BlockMask::random,
         "A share `density` in (0, 1] of all blocks, spread evenly over the rows.", "density"_a.none(),
         "seed"_a.none() = 0);

  type.def_prop_ro("q_length", [](const BlockMask& m) { return m.layout().q_length; })
      .def_prop_ro("k_length", [](const BlockMask& m) { return m.layout().k_length; })
      .def_prop_ro("block_q", [](const BlockMask& m) { return m.layout().block_q; })
      .def_prop_ro("block_k", [](const BlockMask& m) { return m.layout().block_k; })
      .def_prop_ro("heads", [](const BlockMask& m) { return m.layout().heads; })
      .def_prop_ro("q_blocks", &BlockMask::q_blocks)
      .def_prop_ro("k_blocks", &BlockMask::k_blocks)
      .def_prop_ro("kept", &BlockMask::kept, "Number of kept blocks, over all heads of the mask.")
      .def_prop_ro("density", &BlockMask::density, "Kept blocks as a share of all.")
      .def(
          "row",
          [](const BlockMask& m, nb::handle row, nb::handle head) {
            return copy(m.row(integer("head", head), integer("q_block", row)));
          },
          "q_block"_a.none(), "head"_a.none() = 0, "The key blocks that a row of blocks keeps, ascending.")
      .def(
          "column",
          [](const BlockMask& m, nb::handle column, nb::handle head) {
            return copy(m.column(integer("head", head), integer("k_block", column)));
          },
          "k_block"_a.none(), "head"_a.none() = 0, "The query blocks that keep a block of keys, ascending.")
      .def(
          "draw", [](const BlockMask& m, nb::handle head) { return m.draw(integer("head", head)); },
          "head"_a.none() = 0, "One line of '#' (kept) and '.' per row of blocks.")
      .def("prepare", &prepare, "gpu"_a.none() = 0,
           "Copies the mask to a GPU now; otherwise the first call there does.")
      .def("__repr__", &description)
      .def(
          "__eq__",
          [](const BlockMask& a, nb::handle b) {
            BlockMask other;
            return nb::try_cast<BlockMask>(b, other) && a.data() == other.data();
          },
          "other"_a.none())
      .def("__hash__", [](const BlockMask& m) { return std::hash<const void*>()(m.data()); })
      .def("__getstate__", &state_of)
      .def("__setstate__", [](BlockMask* self, const State& state) {
        const auto& [q_length, k_length, block_q, block_k, heads, offsets, columns] = state;
        new (self)
            BlockMask(BlockMask::from_csr({q_length, k_length, block_q, block_k, heads}, offsets, columns));
      });
}

}  // namespace tessera::python
