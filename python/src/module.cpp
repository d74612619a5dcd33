// The module `tessera._core`; its interface is written down in tessera/_core.pyi.
#include <nanobind/nanobind.h>

#include "options.h"
#include "tessera/error.h"
#include "tessera/version.h"

namespace {

namespace nb = nanobind;

PyObject* exception_for(tessera::ErrorCode code) {
  switch (code) {
    case tessera::ErrorCode::invalid_argument: return PyExc_ValueError;
    case tessera::ErrorCode::unsupported: return PyExc_NotImplementedError;
    case tessera::ErrorCode::out_of_memory: return PyExc_MemoryError;
    case tessera::ErrorCode::device_failure: break;
  }
  return PyExc_RuntimeError;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "Exact attention: the library's calls on arrays that the caller has prepared.";
  nb::set_leak_warnings(false);  // caches and default arguments may hold objects until the process ends
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const tessera::Error& error) {
      PyErr_SetString(exception_for(error.code()), error.what());
    }
  });
  module.attr("__version__") = tessera::version();
  module.attr("SEQUENCE_FIRST") = 0;
  module.attr("HEADS_FIRST") = 1;
  tessera::python::add_block_mask(module);
  tessera::python::add_options(module);
  tessera::python::add_calls(module);
  tessera::python::add_plan(module);
#if TESSERA_HAVE_LAB
  tessera::python::add_command(module);
#endif
}
