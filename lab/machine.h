// The machine the command runs on, for rows that must make sense elsewhere.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::lab {

// "AMD EPYC 9B45, 2 CPUs, Linux 6.1.0 x86_64".
std::string machine_text();

// Memory a process may still take without pushing others out: what the system calls available, or what the
// control group leaves if that is less.
std::size_t available_memory();

}  // namespace tessera::lab
