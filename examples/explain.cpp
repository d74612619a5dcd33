// Asking before running: which kernel would serve a problem, what it costs, and why not another one.
#include <iostream>

#include "tessera/tessera.h"

int main() {
  const tessera::Attention attention{.mask = tessera::causal()};
  const tessera::Shapes shapes{.batch = 4, .q_length = 2048, .k_length = 2048, .q_heads = 16, .kv_heads = 4};

  for (const auto direction : {tessera::Direction::forward, tessera::Direction::backward}) {
    std::cout << tessera::plan(attention, shapes, tessera::Device::cpu(), direction) << "\n";
  }

  // A plan is plain data; its workspace can be lent to the call instead of being allocated by it.
  std::cout << "forward takes " << tessera::plan(attention, shapes).workspace_bytes
            << " bytes of workspace\n";

  try {  // What cannot be served says what each kernel lacks.
    (void)tessera::plan({.algorithm = tessera::Algorithm::flash3}, shapes);
  } catch (const tessera::Error& error) {
    std::cout << tessera::name(error.code()) << ": " << error.what() << "\n";
    return error.code() == tessera::ErrorCode::unsupported ? 0 : 1;
  }
  return 1;
}
