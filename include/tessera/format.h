/// \file
/// `std::format` for enumerations, Device and Plan, with the options of a string: `{:>8}`. The
/// header declares nothing where the standard library has no <format> (libstdc++ before 13).
/// tessera.h does not include it, because <format> is slow to compile.
#pragma once

#include <version>

#ifdef __cpp_lib_format

#include <format>
#include <string_view>

#include "tessera/attention.h"
#include "tessera/error.h"
#include "tessera/mask.h"
#include "tessera/plan.h"
#include "tessera/tensor.h"

namespace tessera::detail {

/// Formats an enumerator as its name.
template <typename Enum>
struct NameFormatter : std::formatter<std::string_view> {
  /// Writes the name.
  template <typename Context>
  auto format(Enum value, Context& context) const {
    return std::formatter<std::string_view>::format(name(value), context);
  }
};

/// Formats a value as its `to_string`.
template <typename Value>
struct TextFormatter : std::formatter<std::string_view> {
  /// Writes the text.
  template <typename Context>
  auto format(const Value& value, Context& context) const {
    return std::formatter<std::string_view>::format(to_string(value), context);
  }
};

}  // namespace tessera::detail

template <>
struct std::formatter<tessera::Algorithm> : tessera::detail::NameFormatter<tessera::Algorithm> {};
template <>
struct std::formatter<tessera::Align> : tessera::detail::NameFormatter<tessera::Align> {};
template <>
struct std::formatter<tessera::Device> : tessera::detail::TextFormatter<tessera::Device> {};
template <>
struct std::formatter<tessera::DeviceType> : tessera::detail::NameFormatter<tessera::DeviceType> {};
template <>
struct std::formatter<tessera::Direction> : tessera::detail::NameFormatter<tessera::Direction> {};
template <>
struct std::formatter<tessera::DType> : tessera::detail::NameFormatter<tessera::DType> {};
template <>
struct std::formatter<tessera::ErrorCode> : tessera::detail::NameFormatter<tessera::ErrorCode> {};
template <>
struct std::formatter<tessera::Plan> : tessera::detail::TextFormatter<tessera::Plan> {};
template <>
struct std::formatter<tessera::TensorRole> : tessera::detail::NameFormatter<tessera::TensorRole> {};

#endif
