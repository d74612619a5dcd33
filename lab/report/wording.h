// The words that sentences are made of: places on an axis, ratios, comparisons of two values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// Whether two values differ by too little for a sentence.
bool alike(double a, double b);

// Two values whose quartiles are so wide that they cannot be told apart.
bool noisy(const Mark& a, const Mark& b);

// "Time" for "time"; names such as flash2 begin with a small letter also at the start of a
// sentence.
std::string capitalised(std::string text);

// "a, b and c".
std::string listed(const std::vector<std::string>& items);

// "3.1×", "180×".
std::string times(double ratio);

// "N = 512", "8 heads", "batch 4"; a label of an axis of names as it is.
std::string where(const Axis& axis, const std::string& label);

// The same with its preposition: "at N = 512", "with 8 heads", "for flash2".
std::string at(const Axis& axis, std::size_t x);

// What grows along an axis: "N", "the batch", "the number of heads".
std::string axis_words(const Axis& axis);

// How one value compares with another: "is", "4.0× as fast", and "as" before the other's name.
struct Relation {
  std::string verb;
  std::string text;
  std::string preposition;
};
Relation relation(const Quantity& quantity, double value, double base);

}  // namespace tessera::lab::report
