// How kernels are compiled from tables of configs.
//
// A config is a structure of named numbers; a kernel is a template over one of them. nvcc 13 writes
// a wrong host stub for a kernel template whose argument is such a structure, but not where the
// structure is part of a type: hence Use.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

namespace tessera::cuda {

// A config as a type: the argument of a kernel's template.
template <auto Config>
struct Use {
  static constexpr auto value = Config;
};

// The instances of a table of configs, in its order: make(Use<config>{}) for each of them.
template <const auto& Configs, typename Make>
constexpr auto instances(Make make) {
  return [make]<std::size_t... I>(std::index_sequence<I...>) {
    return std::array{make(Use<Configs[I]>{})...};
  }(std::make_index_sequence<Configs.size()>());
}

}  // namespace tessera::cuda
