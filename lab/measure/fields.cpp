#include "lab/measure/fields.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tessera::lab {

namespace embedded {
extern const char* const fields_json;  // made from lab/measure/fields.json by the build
}

namespace {

using Json = nlohmann::ordered_json;

template <typename Value, std::size_t N>
Value named(const std::array<std::pair<std::string_view, Value>, N>& values, const std::string& name) {
  const auto* const found =
      std::find_if(values.begin(), values.end(), [&](const auto& one) { return one.first == name; });
  if (found == values.end()) throw std::logic_error("fields.json: '" + name + "' is unknown");
  return found->second;
}

constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles = {{{"stamp", Role::stamp},
                                                                      {"run", Role::run},
                                                                      {"key", Role::key},
                                                                      {"setting", Role::setting},
                                                                      {"result", Role::result}}};
constexpr std::array<std::pair<std::string_view, Measure>, 7> kMeasures = {{{"time", Measure::time},
                                                                            {"rate", Measure::rate},
                                                                            {"memory", Measure::memory},
                                                                            {"error", Measure::error},
                                                                            {"loss", Measure::loss},
                                                                            {"saving", Measure::saving},
                                                                            {"other", Measure::other}}};

Field read_field(const Json& object) {
  Field field{.name = object.at("name"),
              .meaning = object.at("meaning"),
              .default_value = object.at("default"),
              .role = named(kRoles, object.at("role")),
              .measure = named(kMeasures, object.value("measure", "other")),
              .label = object.value("label", ""),
              .symbol = object.value("symbol", ""),
              .unit = object.value("unit", ""),
              .programs = object.value("programs", std::vector<std::string>{"bench", "lab", "python"})};
  if (field.label.empty()) {
    field.label = field.name;
    std::replace(field.label.begin(), field.label.end(), '_', ' ');
  }
  if (field.symbol.empty()) field.symbol = field.label;
  return field;
}

bool writes(const std::string& program, const Field& field) {
  return std::find(field.programs.begin(), field.programs.end(), program) != field.programs.end();
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> kAll = [] {
    std::vector<Field> all;
    for (const Json& object : Json::parse(embedded::fields_json)) all.push_back(read_field(object));
    return all;
  }();
  return kAll;
}

const Field* find_field(const std::string& name) {
  const auto found =
      std::find_if(fields().begin(), fields().end(), [&](const Field& field) { return field.name == name; });
  return found == fields().end() ? nullptr : &*found;
}

std::vector<std::string> field_names(const std::string& program, Role role) {
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    if (field.role == role && writes(program, field)) names.push_back(field.name);
  }
  return names;
}

Json default_row(const std::string& program) {
  Json row = Json::object();
  for (const Field& field : fields()) {
    if (writes(program, field)) row[field.name] = field.default_value;
  }
  return row;
}

}  // namespace tessera::lab
