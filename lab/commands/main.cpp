#include "lab/commands/application.h"
#include "lab/terminal/terminal.h"

int main(int argc, char** argv) {
  tessera::lab::install_signal_handlers();
  return tessera::lab::run_application(argc, argv);
}
