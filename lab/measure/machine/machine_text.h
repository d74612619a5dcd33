// The machine the command runs on, for rows that must make sense elsewhere.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/tensor.h"

namespace tessera::lab {

// "AMD EPYC 9B45, 2 CPUs, Linux 6.1.0 x86_64".
std::string machine_text();

// All memory of the machine.
std::size_t memory_bytes();

// Memory a process may still take without pushing others out: what the system calls available, or
// what the control group leaves if that is less.
std::size_t available_memory();

// The machine and, when the work is done there, its GPU: "NVIDIA H200 in AMD EPYC 9B45, 2 CPUs,
// ...".
std::string machine_text(Device device);
// Memory of the device that may still be taken.
std::size_t available_memory(Device device);

}  // namespace tessera::lab
