// A plan before a call: which kernel would run, what it costs, and why no other is chosen.
#include <iostream>

#include "tessera/tessera.h"

int main() {
  const tessera::Attention attention{.mask = tessera::causal()};
  const tessera::Shapes shapes{.batch = 4, .q_length = 2048, .k_length = 2048, .q_heads = 16, .kv_heads = 4};

  for (const auto direction : {tessera::Direction::forward, tessera::Direction::backward}) {
    std::cout << tessera::plan(attention, shapes, tessera::Device::cpu(), direction) << "\n";
  }

  // A plan is plain data: the caller can allocate the workspace and lend it to the call.
  std::cout << "forward takes " << tessera::plan(attention, shapes).workspace_bytes
            << " bytes of workspace\n";

  try {  // An unsupported call says what each kernel requires.
    (void)tessera::plan({.algorithm = tessera::Algorithm::flash3}, shapes);
  } catch (const tessera::Error& error) {
    std::cout << error.code() << ": " << error.what() << "\n";
    return error.code() == tessera::ErrorCode::unsupported ? 0 : 1;
  }
  return 1;
}
