// The command `tessera`, inside the extension: one copy of the library and its kernels serves both.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "lab/commands/application.h"
#include "lab/terminal/terminal.h"
#include "options.h"

namespace tessera::python {

void add_command(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "command",
      [](std::vector<std::string> arguments) {
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        nb::gil_scoped_release unlocked;
        lab::install_signal_handlers();
        return lab::run_application(static_cast<int>(arguments.size()), argv.data());
      },
      "arguments"_a,
      "Runs the command `tessera` and returns its exit status. It takes over SIGINT and SIGTERM: for a "
      "process of its "
      "own.");
}

}  // namespace tessera::python
