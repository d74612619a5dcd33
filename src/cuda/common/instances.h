// A config as the argument of a kernel's template.
//
// nvcc 13 writes a wrong host stub for a kernel template whose argument is a structure of a
// namespace; as part of a type it goes through.
#pragma once

namespace tessera::cuda {

template <auto Config>
struct Use {
  static constexpr auto value = Config;
};

}  // namespace tessera::cuda
