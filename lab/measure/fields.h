// The fields of rows: the table lab/measure/fields.json, which the programs in Python read too.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::lab {

// What a field says about a measurement.
enum class Role {
  stamp,    // when and in which format the row was written
  run,      // where it was measured: equal in all rows of a file
  key,      // which question it answers; known before it is measured
  setting,  // what the library chose, or follows from the key
  result    // what came out
};

// What kind of number a field holds: decides the words of a comparison.
enum class Measure { time, rate, memory, error, loss, saving, other };

struct Field {
  std::string name;
  std::string meaning;                   // one line
  nlohmann::ordered_json default_value;  // in a row where nothing is known
  Role role = Role::result;
  Measure measure = Measure::other;
  std::string label;                  // on an axis: "sequence length N"
  std::string symbol;                 // in a sentence: "N"
  std::string unit;                   // of the value in the row; empty: none
  std::vector<std::string> programs;  // that write it: bench, lab, python; report: derived while drawing
};

// All of them, in the order in which rows have them.
const std::vector<Field>& fields();

// Null for a field that no row has.
const Field* find_field(const std::string& name);

// The names of the fields that a program ("bench", "lab", "python") writes with this role.
std::vector<std::string> field_names(const std::string& program, Role role);

// A row of a program in which every field has its default.
nlohmann::ordered_json default_row(const std::string& program);

}  // namespace tessera::lab
