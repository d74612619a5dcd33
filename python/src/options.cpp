#include "options.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <charconv>
#include <string>
#include <utility>

#include "arguments.h"
#include "array.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::python {
namespace {

// Every field of Options, once: its name in Python and its place. The constructor, the
// attributes, equality, hash, repr and pickling follow from this list;
// python/tessera/_arguments.py declares types, defaults and documentation.
template <typename Description, typename Visit>
void for_each_field(Description& a, Visit&& visit) {
  visit("scale", a.scale);
  visit("left", a.mask.left);
  visit("right", a.mask.right);
  visit("align", a.mask.align);
  visit("diagonal", a.mask.diagonal);
  visit("softcap", a.softcap);
  visit("dropout", a.dropout.probability);
  visit("origin", a.origin);
  visit("algorithm", a.algorithm);
  visit("deterministic", a.deterministic);
  visit("block_mask", a.mask.blocks);
}

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

// From Python: each overload checks `value`, which is the argument `name`, and stores it.
void read(const char* name, nb::handle value, std::optional<double>& field) {
  if (value.is_none()) field.reset();
  else field = real(name, value, " or None");
}
void read(const char* name, nb::handle value, std::optional<std::int64_t>& field) {
  if (value.is_none()) field.reset();
  else field = integer(name, value);
}
void read(const char* name, nb::handle value, std::int64_t& field) { field = integer(name, value); }
void read(const char* name, nb::handle value, double& field) { field = real(name, value); }
void read(const char* name, nb::handle value, bool& field) { field = truth(name, value); }
void read(const char* name, nb::handle value, Align& field) { field = by_name<Align>(name, value, 2); }
void read(const char* name, nb::handle value, Algorithm& field) {
  field = by_name<Algorithm>(name, value, 6);
}
void read(const char* /*name*/, nb::handle value, Origin& field) {
  const bool counted = nb::isinstance<nb::sequence>(value) && !nb::isinstance<nb::str>(value);
  if (!counted || PySequence_Size(value.ptr()) != 4) {
    PyErr_Clear();  // an array without dimensions is a sequence without a size
    refuse("origin is " + shown(value) + "; it must be four integers (row, column, batch entry, head)");
  }
  auto at = [&](const char* name, int i) { return integer(name, nb::object(value[i])); };
  field = {at("origin.row", 0), at("origin.column", 1), at("origin.batch", 2), at("origin.head", 3)};
}
void read(const char* /*name*/, nb::handle value, BlockMask& field) {
  const BlockMask* mask = mask_of(value);
  field = mask != nullptr ? *mask : BlockMask{};
}

// To Python.
template <typename T>
nb::object written(const T& field) {
  return nb::cast(field);
}
nb::object written(Align field) { return nb::cast(name(field)); }
nb::object written(Algorithm field) { return nb::cast(name(field)); }
nb::object written(const Origin& o) { return nb::make_tuple(o.row, o.column, o.batch, o.head); }
nb::object written(const BlockMask& field) { return field ? nb::cast(field) : nb::none(); }

// The value of every field, in the order of the list.
nb::list values_of(const Options& options) {
  nb::list values;
  for_each_field(options.attention, [&](const char*, const auto& field) { values.append(written(field)); });
  return values;
}

// What tells two Options apart. Block masks are compared by identity.
nb::tuple key(const Options& options) {
  nb::list values = values_of(options);
  values.append(reinterpret_cast<std::uintptr_t>(options.attention.mask.blocks.data()));
  values[values.size() - 2] = nb::none();
  return nb::tuple(values);
}

void construct(Options* self, const nb::kwargs& arguments) {
  Options options;
  std::size_t known = 0;
  std::string names;
  for_each_field(options.attention, [&](const char* name, auto& field) {
    names += (names.empty() ? "" : ", ") + std::string(name);
    if (!arguments.contains(name)) return;
    read(name, nb::object(arguments[name]), field);
    ++known;
  });
  if (known != arguments.size()) {
    throw nb::type_error(("Options has an unknown argument; it takes " + names).c_str());
  }
  new (self) Options(std::move(options));
}

// Only the fields that differ from their defaults.
std::string repr_of(const Options& options) {
  const nb::list values = values_of(options), defaults = values_of({});
  std::string text = "Options(";
  std::size_t i = 0;
  for_each_field(options.attention, [&](const char* name, const auto&) {
    const nb::object value = values[i];
    if (!value.equal(defaults[i++])) {
      text += (text.back() == '(' ? "" : ", ") + std::string(name) + "=" + nb::repr(value).c_str();
    }
  });
  return text + ")";
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
              "device is \"" + std::string(text) + "\"; it must be cpu, cuda or cuda:N with N at least 0");
}

void add_options(nb::module_& module) {
  using namespace nb::literals;
  auto type = nb::class_<Options>(module, "Options", "The options of a call. Immutable and hashable.");
  type.def("__init__", &construct, "options"_a)
      .def(
          "with_blocks",
          [](const Options& o, nb::handle block_mask) {
            Options result = o;
            read("block_mask", block_mask, result.attention.mask.blocks);
            return result;
          },
          "block_mask"_a.none(), "The same options with another block mask.")
      .def(
          "__eq__",
          [](const Options& a, nb::handle b) {
            Options other;
            return nb::try_cast<Options>(b, other) && key(a).equal(key(other));
          },
          "other"_a.none())
      .def("__hash__", [](const Options& o) { return nb::hash(key(o)); })
      .def("__repr__", &repr_of)
      .def("__getstate__", [](const Options& o) { return nb::tuple(values_of(o)); })
      .def("__setstate__", [](Options* self, const nb::tuple& state) {
        Options options;
        std::size_t i = 0;
        for_each_field(options.attention,
                       [&](const char* name, auto& field) { read(name, nb::object(state[i++]), field); });
        new (self) Options(std::move(options));
      });
  std::size_t i = 0;
  const Attention attention;
  for_each_field(attention, [&](const char* name, const auto&) {
    type.def_prop_ro(name, [i](const Options& o) { return nb::object(values_of(o)[i]); });
    ++i;
  });
}

}  // namespace tessera::python
