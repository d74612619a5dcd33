// What every function of the C interface needs: catching everything at the boundary, the thread's
// error text, versioned structs, and text into the caller's buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "api/tensor_checks.h"
#include "tessera/capi.h"
#include "tessera/error.h"
#include "tessera/version.h"

namespace tessera::api {

// Keeps the text for tsr_last_error. Never allocates: it must work after memory has run out.
void set_last_error(const char* text) noexcept;

// Runs `body` and turns whatever it throws into a status and the thread's error text.
template <typename Body>
tsr_status guarded(Body&& body) noexcept {
  try {
    body();
    return TSR_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return static_cast<tsr_status>(error.code());
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory on the host");
    return TSR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return TSR_INTERNAL_ERROR;
  } catch (...) {
    set_last_error("a callback threw an exception of unknown type");
    return TSR_INTERNAL_ERROR;
  }
}

// Refuses a null pointer for a required argument.
inline void require(const void* pointer, const char* argument) {
  if (pointer == nullptr) refuse(argument, " is null; it is required");
}

// Refuses a value other than 0 in a field kept for later.
inline void require_reserved(std::int32_t value, const char* field) {
  if (value != 0) refuse(field, " is ", value, "; it must be 0");
}

// Refuses a struct whose size no header can have set. `smallest`: what every version of it has had.
inline void check_struct_size(std::size_t size, std::size_t smallest, const char* argument,
                              const char* initialiser) {
  // Far above every struct here, and small enough that the search for unknown fields stays in what
  // an uninitialised size could make us read.
  static constexpr std::size_t kLargest = 4096;
  if (size >= smallest && size <= kLargest) return;
  refuse(argument, ".struct_size is ", size, "; it must be at least ", smallest, " and at most ", kLargest,
         ": set it with ", initialiser);
}

// A struct of any version as this version has it: missing fields take the defaults of `initial`.
template <typename Struct>
Struct read_versioned(const Struct* given, const Struct& initial, const char* argument,
                      const char* initialiser) {
  require(given, argument);
  const std::size_t size = given->struct_size;
  check_struct_size(size, sizeof(std::size_t), argument, initialiser);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    refuse(argument, ".struct_size is ", size, ", of a newer header; library ", version(),
           " knows the first ", sizeof(Struct), " bytes, and the fields after them must be zero");
  }
  Struct known = initial;
  std::memcpy(static_cast<void*>(&known), given, std::min(size, sizeof(Struct)));
  known.struct_size = sizeof(Struct);
  return known;
}

// As above where a null pointer means the defaults.
template <typename Struct>
Struct read_optional(const Struct* given, const Struct& initial, const char* argument,
                     const char* initialiser) {
  return given == nullptr ? initial : read_versioned(given, initial, argument, initialiser);
}

// Fills the caller's struct as far as it reaches; fields of a newer header become zero.
template <typename Struct>
void write_versioned(Struct* target, Struct value) noexcept {
  const std::size_t size = target->struct_size;
  value.struct_size = size;
  auto* bytes = reinterpret_cast<unsigned char*>(target);
  std::memcpy(bytes, static_cast<const void*>(&value), std::min(size, sizeof(Struct)));
  if (size > sizeof(Struct)) std::memset(bytes + sizeof(Struct), 0, size - sizeof(Struct));
}

// Copies text by the rules that tsr_build_info documents.
void copy_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length);

}  // namespace tessera::api
