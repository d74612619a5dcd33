#include "options.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <charconv>
#include <functional>
#include <string>
#include <tuple>

#include "arguments.h"
#include "array.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::python {
namespace {

using OriginTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

const char* name(Align align) { return align == Align::top_left ? "top_left" : "bottom_right"; }
using tessera::name;

// The enumerator among the first `count` with this name.
template <typename E>
E by_name(const char* what, std::string_view text, int count) {
  if constexpr (std::is_same_v<E, Algorithm>) {
    if (text == "hopper") refuse("algorithm \"hopper\" is now called \"flash3\"");
  }
  std::string allowed;
  for (int i = 0; i < count; ++i) {
    const std::string_view candidate = name(static_cast<E>(i));
    if (candidate == text) return static_cast<E>(i);
    if (i > 0) allowed += i + 1 < count ? ", " : " or ";
    allowed += candidate;
  }
  throw Error(ErrorCode::invalid_argument,
              std::string(what) + " is \"" + std::string(text) + "\"; it must be " + allowed);
}

OriginTuple origin_of(const Attention& a) {
  return {a.origin.row, a.origin.column, a.origin.batch, a.origin.head};
}

// What tells two Options apart.
auto key(const Options& options) {
  const Attention& a = options.attention;
  return std::tuple(a.scale, a.mask.left, a.mask.right, a.mask.align, a.mask.diagonal, a.mask.blocks.data(),
                    a.softcap, a.dropout.probability, origin_of(a), a.algorithm, a.deterministic);
}

std::size_t hash(const Options& options) {
  const Attention& a = options.attention;
  std::size_t value = 0;
  auto mix = [&]<typename T>(const T& part) { value = value * 1000003u ^ std::hash<T>()(part); };
  mix(a.scale), mix(a.mask.left), mix(a.mask.right), mix(static_cast<int>(a.mask.align)),
      mix(a.mask.diagonal);
  mix(a.mask.blocks.data()), mix(a.softcap), mix(a.dropout.probability), mix(static_cast<int>(a.algorithm));
  mix(a.deterministic), mix(a.origin.row), mix(a.origin.column), mix(a.origin.batch), mix(a.origin.head);
  return value;
}

// The same for an object of Python, which need not be a word.
template <typename E>
E by_name(const char* what, nb::handle word, int count) {
  if (nb::isinstance<nb::str>(word)) return by_name<E>(what, nb::cast<std::string_view>(word), count);
  return by_name<E>(what, shown(word), count);
}

const BlockMask* mask_of(nb::handle block_mask) {
  if (block_mask.is_none()) return nullptr;
  const BlockMask* mask = nullptr;
  if (!nb::try_cast(block_mask, mask))
    refuse("block_mask is " + shown(block_mask) + "; it must be a BlockMask or None");
  return mask;
}

OriginTuple origin_from(nb::handle origin) {
  constexpr const char* names[] = {"origin.row", "origin.column", "origin.batch", "origin.head"};
  std::array<std::int64_t, 4> values{};
  const bool counted = nb::isinstance<nb::sequence>(origin) && !nb::isinstance<nb::str>(origin);
  if (!counted || PySequence_Size(origin.ptr()) != 4) {
    PyErr_Clear();  // an array without dimensions is a sequence without a size
    refuse("origin is " + shown(origin) + "; it must be four integers (row, column, batch entry, head)");
  }
  for (std::size_t i = 0; i < 4; ++i) values[i] = integer(names[i], nb::object(origin[i]));
  return {values[0], values[1], values[2], values[3]};
}

Options make(std::optional<double> scale, std::int64_t left, std::int64_t right, Align align,
             std::optional<std::int64_t> diagonal, double softcap, double dropout, const OriginTuple& origin,
             Algorithm algorithm, bool deterministic, const BlockMask* block_mask) {
  Options options;
  Attention& a = options.attention;
  a.scale = scale;
  a.mask = {.left = left, .right = right, .align = align, .diagonal = diagonal};
  if (block_mask != nullptr) a.mask.blocks = *block_mask;
  a.softcap = softcap;
  a.dropout.probability = dropout;
  std::tie(a.origin.row, a.origin.column, a.origin.batch, a.origin.head) = origin;
  a.algorithm = algorithm;
  a.deterministic = deterministic;
  return options;
}

// Only what differs from the defaults.
std::string repr_of(const Options& options) {
  const Attention& a = options.attention;
  std::string text = "Options(";
  auto put = [&](const char* field, const std::string& value, bool given) {
    if (given) text += (text.back() == '(' ? "" : ", ") + std::string(field) + "=" + value;
  };
  auto number = [](double value) { return std::string(nb::repr(nb::float_(value)).c_str()); };
  auto quoted = [](const char* value) { return std::string("\"") + value + "\""; };
  put("scale", number(a.scale.value_or(0)), a.scale.has_value());
  put("left", std::to_string(a.mask.left), a.mask.left != -1);
  put("right", std::to_string(a.mask.right), a.mask.right != -1);
  put("align", quoted(name(a.mask.align)), a.mask.align != Align::bottom_right);
  put("diagonal", std::to_string(a.mask.diagonal.value_or(0)), a.mask.diagonal.has_value());
  put("softcap", number(a.softcap), a.softcap != 0);
  put("dropout", number(a.dropout.probability), a.dropout.probability != 0);
  put("origin", nb::repr(nb::cast(origin_of(a))).c_str(), origin_of(a) != OriginTuple{});
  put("algorithm", quoted(name(a.algorithm)), a.algorithm != Algorithm::automatic);
  put("deterministic", "True", a.deterministic);
  if (a.mask.blocks) put("block_mask", nb::repr(nb::cast(a.mask.blocks)).c_str(), true);
  return text + ")";
}

std::optional<BlockMask> blocks_of(const Options& options) {
  if (!options.attention.mask.blocks) return {};
  return options.attention.mask.blocks;
}

}  // namespace

Algorithm algorithm_of(std::string_view text) { return by_name<Algorithm>("algorithm", text, 6); }
Direction direction_of(std::string_view text) { return by_name<Direction>("direction", text, 2); }
DType dtype_of(std::string_view text) { return by_name<DType>("dtype", text, 4); }

Device device_of(std::string_view text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda();
  int index = 0;
  if (text.starts_with("cuda:")) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 5, end, index);
    if (error == std::errc() && stop == end && index >= 0) return Device::cuda(index);
  }
  throw Error(ErrorCode::invalid_argument,
              "device is \"" + std::string(text) + "\"; it must be cpu, cuda or cuda:N, N being 0 or more");
}

std::string text_of(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

void add_options(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Options>(module, "Options", "The operation, everything but the data. Immutable and hashable.")
      .def(
          "__init__",
          [](Options* self, nb::handle scale, nb::handle left, nb::handle right, nb::handle align,
             nb::handle diagonal, nb::handle softcap, nb::handle dropout, nb::handle origin,
             nb::handle algorithm, nb::handle deterministic, nb::handle block_mask) {
            std::optional<double> factor;
            if (!scale.is_none()) factor = real("scale", scale, " or None");
            std::optional<std::int64_t> column;
            if (!diagonal.is_none()) column = integer("diagonal", diagonal);
            new (self) Options(make(factor, integer("left", left), integer("right", right),
                                    by_name<Align>("align", align, 2), column, real("softcap", softcap),
                                    real("dropout", dropout), origin_from(origin),
                                    by_name<Algorithm>("algorithm", algorithm, 6),
                                    truth("deterministic", deterministic), mask_of(block_mask)));
          },
          nb::kw_only(), "scale"_a.none() = nb::none(), "left"_a.none() = -1, "right"_a.none() = -1,
          "align"_a.none() = "bottom_right", "diagonal"_a.none() = nb::none(), "softcap"_a.none() = 0.0,
          "dropout"_a.none() = 0.0, "origin"_a.none() = OriginTuple{}, "algorithm"_a.none() = "automatic",
          "deterministic"_a.none() = false, "block_mask"_a.none() = nb::none())
      .def(
          "with_blocks",
          [](const Options& o, nb::handle block_mask) {
            Options result = o;
            const BlockMask* mask = mask_of(block_mask);
            result.attention.mask.blocks = mask != nullptr ? *mask : BlockMask{};
            return result;
          },
          "block_mask"_a.none(), "The same with another block mask.")
      .def_prop_ro("scale", [](const Options& o) { return o.attention.scale; })
      .def_prop_ro("left", [](const Options& o) { return o.attention.mask.left; })
      .def_prop_ro("right", [](const Options& o) { return o.attention.mask.right; })
      .def_prop_ro("align", [](const Options& o) { return name(o.attention.mask.align); })
      .def_prop_ro("diagonal", [](const Options& o) { return o.attention.mask.diagonal; })
      .def_prop_ro("softcap", [](const Options& o) { return o.attention.softcap; })
      .def_prop_ro("dropout", [](const Options& o) { return o.attention.dropout.probability; })
      .def_prop_ro("origin", [](const Options& o) { return origin_of(o.attention); })
      .def_prop_ro("algorithm", [](const Options& o) { return name(o.attention.algorithm); })
      .def_prop_ro("deterministic", [](const Options& o) { return o.attention.deterministic; })
      .def_prop_ro("block_mask", &blocks_of)
      .def(
          "__eq__",
          [](const Options& a, nb::handle b) {
            Options other;
            return nb::try_cast<Options>(b, other) && key(a) == key(other);
          },
          "other"_a.none())
      .def("__hash__", &hash)
      .def("__repr__", [](const Options& o) { return repr_of(o); })
      .def("__getstate__",
           [](const Options& o) {
             const Attention& a = o.attention;
             return std::tuple(a.scale, a.mask.left, a.mask.right, std::string(name(a.mask.align)),
                               a.mask.diagonal, a.softcap, a.dropout.probability, origin_of(a),
                               std::string(name(a.algorithm)), a.deterministic, blocks_of(o));
           })
      .def("__setstate__", [](Options* self,
                              const std::tuple<std::optional<double>, std::int64_t, std::int64_t, std::string,
                                               std::optional<std::int64_t>, double, double, OriginTuple,
                                               std::string, bool, std::optional<BlockMask>>& state) {
        const auto& [scale, left, right, align, diagonal, softcap, dropout, origin, algorithm, deterministic,
                     blocks] = state;
        new (self)
            Options(make(scale, left, right, by_name<Align>("align", align, 2), diagonal, softcap, dropout,
                         origin, algorithm_of(algorithm), deterministic, blocks ? &*blocks : nullptr));
      });
}

}  // namespace tessera::python
