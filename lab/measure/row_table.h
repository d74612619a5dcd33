// The table of `tessera bench`.
#pragma once

#include <string>
#include <vector>

#include "lab/measure/rows.h"
#include "lab/terminal/table.h"

namespace tessera::lab {

// What differs between the problems becomes columns; what they share stands in a line above.
class RowTable {
 public:
  // `checked`: rows say how far their results are from those of another method.
  RowTable(const std::vector<Problem>& problems, const std::vector<Method>& methods, bool checked = false);

  // What all rows share, and the header.
  [[nodiscard]] std::string header() const;
  [[nodiscard]] std::string row(const Row& row, bool color) const;

 private:
  void build_table(const std::vector<Problem>& problems, const std::vector<Method>& methods);
  [[nodiscard]] std::vector<std::string> labels(const Problem& problem, const Method& method) const;

  std::vector<Property> varying_;
  bool with_speedup_ = false;
  bool with_traffic_ = true;
  bool with_spread_ = true;
  bool with_memory_ = true;
  bool with_error_ = true;
  bool with_host_ = false;  // a GPU's rows
  bool with_check_ = false;
  std::string caption_;
  Table table_;
};

}  // namespace tessera::lab
