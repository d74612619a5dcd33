// Libraries that are loaded while the program runs, because they need not be installed.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace tessera::core {

// A library and the functions that a program takes from it. It stays loaded.
class DynamicLibrary {
 public:
  // Loads a file from the first folder that has it. The folder "" leaves the search to the loader,
  // which also finds what the process has loaded already. False: no folder has it.
  bool open(const std::string& file, std::initializer_list<const char*> folders = {""}) {
    file_ = file;
    for (const char* folder : folders) {
      handle_ = dlopen((folder + file).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return true;
    }
    return false;
  }

  // Sets a pointer to a function of the library. Without the function it is null, and missing()
  // names it.
  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) missing_ = file_ + " has no " + name;
  }

  // Which function was not found; empty: all were.
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* handle_ = nullptr;
  std::string file_, missing_;
};

}  // namespace tessera::core
