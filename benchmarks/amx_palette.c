// For machines that have AMX but hide CPUID leaves 1DH and 1EH (some virtual machines): oneDNN, which PyTorch calls,
// reads there how large a tile is, configures no tiles and dies of an illegal instruction. Preloaded, this answers
// the two leaves with what every CPU with AMX says so far; all others come from the CPU.
//
//   cc -O2 -shared -fPIC -o build/amx_palette.so benchmarks/amx_palette.c
//   LD_PRELOAD=build/amx_palette.so python3 benchmarks/peers_cpu.py --dtypes bf16
//
// Linux lets the instruction fault on CPUs that can (`cpuid_fault` in /proc/cpuinfo). Where it does not, nothing
// changes.
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static void permit_cpuid(unsigned long permitted) {
  enum { kSetCpuid = 0x1012 };  // ARCH_SET_CPUID
  syscall(SYS_arch_prctl, kSetCpuid, permitted);
}

// The handler of SIGSEGV: does what a faulting cpuid would have done. Any other fault comes again without a handler.
static void answer(int number, siginfo_t* info, void* context) {
  (void)info;
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* code = (const uint8_t*)registers[REG_RIP];
  if (code[0] != 0x0F || code[1] != 0xA2) {
    signal(number, SIG_DFL);
    return;
  }
  const unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
  unsigned a, b, c, d;
  permit_cpuid(1);
  __cpuid_count(leaf, part, a, b, c, d);
  permit_cpuid(0);
  if (leaf == 0 && a < 0x1E) a = 0x1E;   // the highest leaf
  if (leaf == 0x1D && part == 0) a = 1;  // the highest palette
  if (leaf == 0x1D && part == 1) {
    a = 1024 << 16 | 8192;  // bytes of a tile, of all
    b = 8 << 16 | 64;       // tiles, bytes of a row
    c = 16;                 // rows
  }
  if (leaf == 0x1E && part == 0) b = 64 << 8 | 16;  // what a product takes: bytes of a row, rows
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  permit_cpuid(0);
}
