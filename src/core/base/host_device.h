// One definition for the host and every device: the core has no intrinsics and no CUDA headers.
#pragma once

#ifdef __CUDACC__
#define TESSERA_HD __host__ __device__
#else
#define TESSERA_HD
#endif
