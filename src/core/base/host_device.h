// One definition for the host and every device: the core has no intrinsics and no CUDA headers.
#pragma once

#ifdef __CUDACC__
#define TESSERA_HD __host__ __device__
#else
#define TESSERA_HD
#endif

// The GPU that code is compiled for, as nvcc's __CUDA_ARCH__ says it: 900 is compute capability
// 9.0. On the host 0, unless the build defines it: the model of a GPU (tests/gpu_model) does.
#ifndef TESSERA_CUDA_ARCH
#ifdef __CUDA_ARCH__
#define TESSERA_CUDA_ARCH __CUDA_ARCH__
#else
#define TESSERA_CUDA_ARCH 0
#endif
#endif
