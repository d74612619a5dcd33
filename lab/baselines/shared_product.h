// One matrix times each of a batch: by OpenBLAS on the CPU, by cuBLAS on a GPU. Baselines that
// project use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/execution.h"
#include "tessera/tensor.h"

namespace tessera::lab {

// to (rows x columns) = alpha M from (depth x columns), for each of the batch. Matrices are
// row-major, without gaps and of one type: fp32 on the CPU; fp32, fp16 or bf16 on a GPU.
struct SharedProduct {
  const void* matrix = nullptr;  // rows x depth, or transposed: depth x rows
  bool transposed = false;
  std::int64_t rows = 0, columns = 0, depth = 0, batch = 1;
  float alpha = 1;
  DType dtype = DType::fp32;
  const void* from = nullptr;
  void* to = nullptr;
};

// Why there are no products on a device; empty: there are.
std::string products_missing(Device device);

// The workspace that `multiply` needs on the device.
std::size_t product_workspace_bytes(Device device);

// Computes it; on a GPU it is put on the execution's stream. `workspace` is in the device's memory.
void multiply(const SharedProduct& product, Device device, const Execution& execution, void* workspace);

// Copies from the host to the device in the order of the execution's stream, and waits for the
// copy.
void copy_to(Device device, const Execution& execution, void* to, const void* host, std::size_t bytes);

}  // namespace tessera::lab
